package endpointmanager

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/datapath/rtnl"
	"github.com/waggle-net/waggle/pkg/mac"
)

// kernel observes links and namespaces, from which the collector derives whether a pod still runs.
type kernel interface {
	// links returns the veths in the agent's network namespace by their index.
	links() (links, error)
	// namespace stats the path at which the runtime mounts a pod's network namespace.
	namespace(path string) observation
	// boot returns the boot id of the kernel; empty when it cannot be read.
	boot() string
}

// link is one veth.
type link struct {
	name string
	mac  mac.Addr
}

// observation is the agent's view of the path of a namespace. It may differ from the runtime's view: in a container the path may lead to another directory or to
// none.
type observation struct {
	inode uint64 // inode of the network namespace at the path; 0 when there is none
	dir   string // "device:inode" of the directory; empty when it is not visible
	gone  bool   // the directory is visible and has no such file
}

type realKernel struct{}

func newKernel() kernel { return realKernel{} }

// links opens a netlink handle for each dump: one at the start, and others only while a link is missing.
func (realKernel) links() (links, error) {
	handle, err := rtnl.Open()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	defer handle.Close()
	list, err := handle.Links()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	veths := make(links, len(list))
	for _, l := range list {
		if a := l.Attrs(); l.Type() == "veth" {
			hardware, _ := mac.Parse(a.HardwareAddr.String()) // zero when the link has none
			veths[a.Index] = link{a.Name, hardware}
		}
	}
	return veths, nil
}

func (realKernel) namespace(path string) (s observation) {
	var dir, file unix.Stat_t
	if err := unix.Stat(filepath.Dir(path), &dir); err != nil {
		return s
	}
	s.dir = fmt.Sprintf("%d:%d", dir.Dev, dir.Ino)
	var fs unix.Statfs_t
	switch err := unix.Stat(path, &file); {
	case err == unix.ENOENT:
		s.gone = true
	case err == nil && unix.Statfs(path, &fs) == nil && fs.Type == unix.NSFS_MAGIC:
		s.inode = file.Ino
	}
	return s
}

// boot reads /proc of the agent's container: the boot id is the same in every namespace.
func (realKernel) boot() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}
