package pathtest

import (
	"context"
	"net/netip"
	"time"

	"github.com/waggle-net/waggle/pkg/icmpecho"
)

// checksums says what completes the checksums of packets into the tunnel.
type checksums bool

const (
	byUnderlay checksums = false // the devices of the underlay, as far as they can
	asPods     checksums = true  // what completes those of pods: the kernel, where a device of the underlay spoils them
)

// kernel is what this cell asks of the network.
type kernel interface {
	// Open opens the sockets, so that an agent has from its start what it needs. A failure is an error of Echo, which tries again.
	Open()
	// Echo sends one ICMP echo request that may not be fragmented and returns the time until its reply.
	Echo(ctx context.Context, r icmpecho.Request) (time.Duration, error)
	// Fetch asks the server of node-health at an address for an answer of so many bytes and returns how many came. A server that does
	// not know the request sends 0 bytes, without an error. The checksums of the request are completed as a checksums says.
	Fetch(ctx context.Context, to netip.AddrPort, bytes int, by checksums) (got int, err error)
	// Heard returns when an address last sent this node an ICMP echo request; zero when it has not.
	Heard(from netip.Addr) time.Time
	// Close closes the sockets.
	Close()
}
