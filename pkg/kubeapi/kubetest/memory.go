package kubetest

import (
	"context"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"github.com/waggle-net/waggle/pkg/pipenet"
)

// InMemory connects clients through memory and not through sockets, so that a server and its clients can live in a bubble of
// [testing/synctest]. Only clients with the server's [Server.Config] reach it, and those of its replicas.
func InMemory() Option {
	return func(_ testing.TB, s *Server) {
		if s.network == nil {
			s.network = &network{listeners: map[string]*pipenet.Listener{}}
		}
	}
}

// network finds listeners by their address.
type network struct {
	mu        sync.Mutex // guards what follows
	listeners map[string]*pipenet.Listener
}

// ports counts the ports that were given, so that no two servers have the same address, as with sockets.
var ports atomic.Int32

// listen takes an address, which is a new one if the address names no port.
func (n *network) listen(address string) net.Listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, port, _ := net.SplitHostPort(address); port == "0" {
		address = net.JoinHostPort("127.0.0.1", strconv.Itoa(6442+int(ports.Add(1))))
	}
	n.listeners[address] = pipenet.Listen(address)
	return n.listeners[address]
}

// dial implements rest.Config.Dial.
func (n *network) dial(ctx context.Context, _, address string) (net.Conn, error) {
	n.mu.Lock()
	l := n.listeners[address]
	n.mu.Unlock()
	if l == nil {
		return nil, pipenet.Refused()
	}
	return l.Dial(ctx)
}

// Freeze lets the server's host lose its power: connections stay open and deliver nothing, and new ones do not come about. The
// server must be [InMemory]; [Server.Start] after [Server.Stop] gives the host its power again.
func (s *Server) Freeze() {
	s.network.mu.Lock()
	defer s.network.mu.Unlock()
	s.network.listeners[s.address].Freeze()
}

// ForgetRealTime keeps client-go's handlers of errors from sleeping until the real time of the last error, which lies decades ahead of
// the time in a bubble. TestMain of a package that has reflectors in bubbles calls it, before there are goroutines.
func ForgetRealTime() { utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1] }
