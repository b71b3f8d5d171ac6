package endpointmanager

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/mac"
	"github.com/waggle-net/waggle/pkg/rtnl"
)

// kernel is what tells whether the pod of an endpoint still lives.
type kernel interface {
	// links returns the veths in the agent's network namespace.
	links() (links, error)
	// namespace looks at a path at which the runtime has, or had, a pod's network namespace.
	namespace(path string) sight
	// boot identifies this run of the kernel; empty when that cannot be read.
	boot() string
}

// link is one veth.
type link struct {
	name string
	mac  mac.Addr
}

// sight is what the agent sees at the path of a namespace. Its view may differ from the runtime's: in a container the path
// may lead elsewhere, or nowhere.
type sight struct {
	inode uint64 // of the network namespace at the path; 0 when there is none
	dir   string // "device:inode" of the directory; empty when it cannot be seen
	gone  bool   // the directory can be seen and has no such file
}

type realKernel struct{}

func newKernel() kernel { return realKernel{} }

// links opens a handle for each dump: there is one at the start, and others only while a link is missing.
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
			hardware, _ := mac.Parse(a.HardwareAddr.String()) // zero when it has none
			veths[a.Index] = link{a.Name, hardware}
		}
	}
	return veths, nil
}

func (realKernel) namespace(path string) (s sight) {
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

// boot reads the container's own /proc: the id is the same in every namespace.
func (realKernel) boot() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}
