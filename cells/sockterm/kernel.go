package sockterm

import (
	"errors"
	"fmt"
	"os"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/bpfmaps"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/sockdiag"
)

// errNamespaceGone is all that may be passed over in silence: with the namespace went its sockets.
var errNamespaceGone = errors.New("the network namespace is gone")

// kernel is what this cell asks of the kernel.
type kernel interface {
	// Load loads the program that lists sockets.
	Load() (list, error)
	// Close closes sockets of one namespace and tells which of them it closed, also when others fail: that of the node, or one
	// with a path, which is [errNamespaceGone] unless it has the inode.
	Close(path string, inode uint64, doomed []socket) ([]socket, error)
}

// list lists sockets.
type list interface {
	// Connected lists those that programs have connected to backends, of all network namespaces.
	Connected() ([]socket, error)
	// End unloads the program.
	End()
}

// socket is one that programs have connected to a backend when its process asked for a service.
type socket struct {
	Netns            uint64 // inode of its network namespace; 0 is that of the node
	Cookie           uint64 // which no other socket has, as long as the machine runs
	Service, Backend loadbalancer.Address
}

// real is the real kernel.
type real struct{ maps bpfmaps.Maps }

func newKernel(m bpfmaps.Maps) kernel { return real{m} }

// Load implements kernel.
func (r real) Load() (list, error) {
	l, err := sockdiag.NewLister()
	return lister{l, r.maps}, err
}

type lister struct {
	*sockdiag.Lister
	maps bpfmaps.Maps
}

// End implements list.
func (l lister) End() { l.Close() }

// Connected implements list.
func (l lister) Connected() ([]socket, error) {
	var own unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &own); err != nil {
		return nil, fmt.Errorf("look at the agent's own network namespace: %w", err)
	}
	stored, err := l.maps.Get(bpf.MapSockConnected)
	if err != nil {
		return nil, err
	}
	all, err := l.List(stored)
	sockets := make([]socket, 0, len(all))
	for i := range all {
		s := &all[i]
		if s.Peer.BackendId == 0 {
			continue
		}
		asked, target, protocol := s.Peer.Asked(), s.Peer.Target(), loadbalancer.Protocol(s.Protocol)
		found := socket{Netns: uint64(s.Netns), Cookie: s.Cookie,
			Service: loadbalancer.Address{Addr: asked.Addr(), Port: asked.Port(), Protocol: protocol},
			Backend: loadbalancer.Address{Addr: target.Addr(), Port: target.Port(), Protocol: protocol}}
		if found.Netns == own.Ino {
			found.Netns = 0
		}
		sockets = append(sockets, found)
	}
	return sockets, err
}

// Close implements kernel.
func (real) Close(path string, inode uint64, doomed []socket) (closed []socket, err error) {
	c, err := open(path, inode)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	wanted := map[uint8]map[uint64]socket{}
	for _, s := range doomed {
		p := uint8(s.Backend.Protocol)
		if wanted[p] == nil {
			wanted[p] = make(map[uint64]socket)
		}
		wanted[p][s.Cookie] = s
	}
	var errs []error // a protocol that fails does not keep the sockets of the other
	for p, cookies := range wanted {
		var found []sockdiag.Socket
		if err := c.Each(p, func(s sockdiag.Socket) {
			// What is listed of a socket that is connected anew meanwhile may be wrong; so is what has been stored of one that was
			// connected to somebody else by other means.
			if want, is := cookies[s.Cookie]; is && want.Backend.Addr == s.Peer.Addr() && want.Backend.Port == s.Peer.Port() {
				found = append(found, s)
			}
		}); err != nil {
			errs = append(errs, err)
			continue
		}
		for i := range found {
			was, err := c.Destroy(&found[i])
			if err != nil {
				errs = append(errs, err)
				break
			}
			if was {
				closed = append(closed, cookies[found[i].Cookie])
			}
		}
	}
	return closed, errors.Join(errs...)
}

// open opens the node's namespace, or one with a path.
func open(path string, inode uint64) (*sockdiag.Conn, error) {
	if path == "" {
		return sockdiag.Open()
	}
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", errNamespaceGone, err)
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
		return nil, fmt.Errorf("look at %s: %w", path, err)
	}
	if stat.Ino != inode {
		return nil, fmt.Errorf("open %s: %w: it is another one by now", path, errNamespaceGone)
	}
	c, err := sockdiag.OpenAt(netns.NsHandle(file.Fd()))
	if errors.Is(err, unix.EPERM) {
		err = fmt.Errorf("enter %s: %w: --bpf-lb-sock-terminate-pod-connections needs the capability SYS_ADMIN", path, err)
	}
	return c, err
}
