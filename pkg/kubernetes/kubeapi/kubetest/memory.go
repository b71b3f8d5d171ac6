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

// InMemory connects clients through memory instead of sockets, so that a server and its clients can run in a [testing/synctest] bubble. Only clients
// with the [Server.Config] of the server or its replicas reach it.
func InMemory() Option {
	return func(_ testing.TB, s *Server) {
		if s.network == nil {
			s.network = &network{listeners: map[string]*pipenet.Listener{}}
		}
	}
}

// network maps addresses to listeners.
type network struct {
	mu        sync.Mutex // guards the fields below
	listeners map[string]*pipenet.Listener
}

// ports counts the assigned ports, so that no two servers have the same address, as with sockets.
var ports atomic.Int32

// listen listens on an address, or on a new one if the address has no port.
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
		return nil, pipenet.ConnectionRefused()
	}
	return l.Dial(ctx)
}

// Freeze simulates a host without power: connections stay open and deliver no data, and new ones are not established. The server must be [InMemory];
// [Server.Start] after [Server.Stop] restores the power.
func (s *Server) Freeze() {
	s.network.mu.Lock()
	defer s.network.mu.Unlock()
	s.network.listeners[s.address].Freeze()
}

// ForgetRealTime prevents client-go's error handlers from sleeping until the real time of the last error, which is decades after the time in a bubble.
// TestMain of a package with reflectors in bubbles calls it before it starts goroutines.
func ForgetRealTime() { utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1] }
