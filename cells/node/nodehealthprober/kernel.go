package nodehealthprober

import (
	"context"
	"net"
	"net/netip"
	"time"
)

// kernel sends probes and opens the sockets of servers.
type kernel interface {
	// Open opens the sockets of Echo early, so that the agent holds them from its start. If it fails, Echo tries again and returns the error.
	Open()
	// Echo sends one ICMP echo request and returns the round-trip time.
	Echo(ctx context.Context, to netip.Addr) (time.Duration, error)
	// Hello sends a request of the named node to the responder at an address. It returns the time from the first packet to the reply, and the digest of the nodes
	// that the responder's agent knows, nil when the reply has none.
	Hello(ctx context.Context, to netip.AddrPort, requester string) (time.Duration, *digest, error)
	// Close closes the sockets of Echo. The next request opens new ones.
	Close()
	// ListenHello opens the responder's port on all addresses.
	ListenHello(ctx context.Context, port uint16) (net.Listener, error)
	// ListenAPI opens the socket of the health API.
	ListenAPI(path string) (net.Listener, error)
}
