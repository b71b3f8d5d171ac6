package endpointmanager

import (
	"fmt"
	"net"
)

// kernel is what restoring asks the kernel for.
type kernel interface {
	// links returns the name of each link by its index, in the agent's network namespace.
	links() (map[int]string, error)
}

type realKernel struct{}

func newKernel() kernel { return realKernel{} }

func (realKernel) links() (map[int]string, error) {
	list, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	names := make(map[int]string, len(list))
	for _, link := range list {
		names[link.Index] = link.Name
	}
	return names, nil
}
