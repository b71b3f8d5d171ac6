package endpointmanager

import (
	"fmt"

	"github.com/waggle-net/waggle/pkg/rtnl"
)

// kernel is what restoring asks the kernel for.
type kernel interface {
	// links returns the name of each link by its index, in the agent's network namespace.
	links() (map[int]string, error)
}

type realKernel struct{}

func newKernel() kernel { return realKernel{} }

// links opens a handle for the one dump that a start needs.
func (realKernel) links() (map[int]string, error) {
	handle, err := rtnl.Open()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	defer handle.Close()
	list, err := handle.Links()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	names := make(map[int]string, len(list))
	for _, link := range list {
		names[link.Attrs().Index] = link.Attrs().Name
	}
	return names, nil
}
