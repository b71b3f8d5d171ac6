package sockterm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/bpfmaps"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/sockdiag"
)

// kernel is what this cell asks of the kernel.
type kernel interface {
	// Open opens a network namespace: that of the node, or one with a path, which is [fs.ErrNotExist] unless it has the inode.
	Open(path string, inode uint64) (namespace, error)
}

// namespace has sockets.
type namespace interface {
	// Close closes the sockets that are connected to a backend which gone tells to be gone, and tells how many. Of TCP only those
	// that programs have connected to it are asked for.
	Close(p loadbalancer.Protocol, gone func(backend loadbalancer.Address) bool) (int, error)
	// End lets the namespace alone.
	End()
}

// real is the real kernel.
type real struct{ maps bpfmaps.Maps }

func newKernel(m bpfmaps.Maps) kernel { return real{m} }

// Open implements kernel.
func (r real) Open(path string, inode uint64) (namespace, error) {
	if path == "" {
		c, err := sockdiag.Open()
		return sockets{c, r.maps}, err
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
		return nil, fmt.Errorf("look at %s: %w", path, err)
	}
	if stat.Ino != inode {
		return nil, fmt.Errorf("open %s: it is another namespace by now: %w", path, fs.ErrNotExist)
	}
	c, err := sockdiag.OpenAt(netns.NsHandle(file.Fd()))
	if errors.Is(err, unix.EPERM) {
		err = fmt.Errorf("enter %s: %w: --bpf-lb-sock-terminate-pod-connections needs the capability SYS_ADMIN", path, err)
	}
	return sockets{c, r.maps}, err
}

// sockets are those of one namespace.
type sockets struct {
	*sockdiag.Conn
	maps bpfmaps.Maps
}

// End implements namespace.
func (s sockets) End() { s.Conn.Close() }

// Close implements namespace.
func (s sockets) Close(p loadbalancer.Protocol, gone func(loadbalancer.Address) bool) (closed int, err error) {
	stored, err := s.maps.Get(bpf.MapSockConnected)
	if err != nil {
		return 0, err
	}
	var doomed []sockdiag.Socket
	if err := s.Each(uint8(p), stored, func(socket sockdiag.Socket) {
		if translated(&socket) && gone(loadbalancer.Address{Addr: socket.Peer.Addr(), Port: socket.Peer.Port(), Protocol: p}) {
			doomed = append(doomed, socket)
		}
	}); err != nil {
		return 0, err
	}
	for i := range doomed {
		was, err := s.Destroy(&doomed[i])
		if err != nil {
			return closed, err
		}
		if was {
			closed++
		}
	}
	return closed, nil
}

// translated tells whether programs have connected a TCP socket to its peer. What is stored of one that was connected to
// somebody else since is of no more worth. Of UDP sockets the kernel does not tell what is stored.
func translated(s *sockdiag.Socket) bool {
	if s.Protocol == unix.IPPROTO_UDP {
		return true
	}
	var peer bpf.SockPeer
	n, err := binary.Decode(s.Storage, binary.NativeEndian, &peer)
	return err == nil && n == len(s.Storage) && peer.BackendId != 0 && peer.Target() == s.Peer
}
