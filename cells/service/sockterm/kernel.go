package sockterm

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/pinnedmaps"
	"github.com/waggle-net/waggle/pkg/datapath/sockdiag"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/podns"
)

// kernel is the interface of this cell to the kernel.
type kernel interface {
	// Load loads the programs that list sockets.
	Load() (list, error)
}

// list opens network namespaces. The caller must close it.
type list interface {
	// Open opens the network namespace of the node, or the one at a path. It returns [podns.ErrGone] if the namespace at the path does not have the inode.
	Open(path string, inode uint64) (namespace, error)
	Close()
}

// namespace holds the sockets of one network namespace. The caller must close it.
type namespace interface {
	// Connected lists the sockets that programs have connected to backends. An error of one protocol does not prevent the list of the other.
	Connected() ([]socket, error)
	// Terminate closes a socket, and reports whether it was still connected to its backend.
	Terminate(s *socket) (bool, error)
	Close()
}

// socket is a socket that programs have connected to a backend because its process connected to a service.
type socket struct {
	Service, Backend loadbalancer.Address

	diag sockdiag.Socket
}

// real implements kernel.
type real struct{ maps pinnedmaps.Maps }

func newKernel(m pinnedmaps.Maps) kernel { return real{m} }

// Load implements kernel.
func (r real) Load() (list, error) {
	stored, err := r.maps.Get(bpf.MapSockConnected)
	if err != nil {
		return nil, err
	}
	l, err := sockdiag.NewLister(stored)
	return lister{l}, err
}

type lister struct{ *sockdiag.Lister }

// Open implements list.
func (l lister) Open(path string, inode uint64) (namespace, error) {
	ns := netns.None()
	if path != "" {
		var err error
		if ns, err = podns.Open(path, inode); err != nil {
			return nil, err
		}
	}
	conn, err := sockdiag.OpenAt(ns)
	if err != nil {
		if errors.Is(err, unix.EPERM) {
			err = fmt.Errorf("enter %s: %w: --bpf-lb-sock-terminate-pod-connections needs the capability SYS_ADMIN", path, err)
		}
		return nil, errors.Join(err, release(ns))
	}
	return diagnosis{conn, l.Lister, ns}, nil
}

// diagnosis is a network namespace, read by iterators and NETLINK_SOCK_DIAG.
type diagnosis struct {
	conn   *sockdiag.Conn
	lister *sockdiag.Lister
	ns     netns.NsHandle
}

// Connected implements namespace.
func (d diagnosis) Connected() (sockets []socket, err error) {
	var errs []error
	for _, p := range []loadbalancer.Protocol{loadbalancer.TCP, loadbalancer.UDP} {
		listed, err := d.lister.List(d.ns, uint8(p))
		peers := make(map[uint64]*bpf.SockPeer, len(listed))
		for i := range listed {
			if l := &listed[i]; l.Peer.BackendId != 0 {
				peers[l.Cookie] = &l.Peer
			}
		}
		if err == nil && len(peers) > 0 {
			err = d.conn.Each(uint8(p), func(found sockdiag.Socket) {
				// The stored peer may be wrong for a socket that is connected again meanwhile, and for a socket that its
				// process has connected to another address by other means.
				if peer := peers[found.Cookie]; peer != nil && peer.Target() == found.Peer {
					sockets = append(sockets, connection(peer, p, found))
				}
			})
		}
		errs = append(errs, err)
	}
	return sockets, errors.Join(errs...)
}

// connection returns a socket with the peer that programs have stored at it.
func connection(peer *bpf.SockPeer, p loadbalancer.Protocol, found sockdiag.Socket) socket {
	asked, backend := peer.ServiceAddr(), peer.Target()
	return socket{Service: loadbalancer.Address{Addr: asked.Addr(), Port: asked.Port(), Protocol: p},
		Backend: loadbalancer.Address{Addr: backend.Addr(), Port: backend.Port(), Protocol: p}, diag: found}
}

// Terminate implements namespace.
func (d diagnosis) Terminate(s *socket) (bool, error) { return d.conn.Destroy(&s.diag) }

// Close implements namespace.
func (d diagnosis) Close() {
	d.conn.Close()
	_ = release(d.ns)
}

// release closes a handle of a network namespace; it does nothing for [netns.None].
func release(ns netns.NsHandle) error {
	if ns == netns.None() {
		return nil
	}
	return ns.Close()
}
