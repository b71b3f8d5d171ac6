package pathtest

import (
	"context"
	"net/netip"
	"time"

	"github.com/waggle-net/waggle/pkg/icmpecho"
)

// checksums selects where the checksums of packets into the tunnel are completed.
type checksums bool

const (
	byUnderlay checksums = false // by the devices of the underlay, if they support it
	asPods     checksums = true  // like packets of pods: by the kernel if a device of the underlay corrupts checksums
)

// kernel sends the requests of tests.
type kernel interface {
	// Open opens the sockets early, so that the agent holds them from its start. If it fails, Echo tries again and returns the error.
	Open()
	// Echo sends one ICMP echo request that must not be fragmented, and returns the round-trip time.
	Echo(ctx context.Context, r icmpecho.Request) (time.Duration, error)
	// Fetch requests a number of bytes from the server of node-health at an address, and returns the number of received bytes. A server that does not support the
	// request sends 0 bytes without an error. The last parameter selects where the checksums of the request are completed.
	Fetch(ctx context.Context, to netip.AddrPort, bytes int, by checksums) (got int, err error)
	// Heard returns when an address last sent this node an ICMP echo request; zero when it has not.
	Heard(from netip.Addr) time.Time
	// Close closes the sockets.
	Close()
}
