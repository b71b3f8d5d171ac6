package nodehealth

import (
	"context"
	"net"
	"net/netip"
	"time"
)

// kernel is what this cell asks of the network and of the machine.
type kernel interface {
	// Open opens the sockets of Echo, so that an agent has from its start what it needs. A failure is an error of Echo, which tries again.
	Open()
	// Echo sends one ICMP echo request and returns the time until its reply.
	Echo(ctx context.Context, to netip.Addr) (time.Duration, error)
	// Hello asks the responder at an address in the name of a node. It returns the time from the first packet to the answer, and the digest of the
	// nodes that the agent there knows, nil when the answer has none.
	Hello(ctx context.Context, to netip.AddrPort, asker string) (time.Duration, *digest, error)
	// Close closes the sockets of Echo. The next request opens others.
	Close()
	// ListenHello opens the responder's port on all addresses.
	ListenHello(ctx context.Context, port uint16) (net.Listener, error)
	// ListenAPI opens the socket of the health API.
	ListenAPI(path string) (net.Listener, error)
}
