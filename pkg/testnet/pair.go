package testnet

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// awaitLimit is the timeout of [Await].
const awaitLimit = time.Minute

// Pair is two hosts with a link between their devices eth0. The near one has 192.0.2.1 and 2001:db8::1, the far one 192.0.2.2 and 2001:db8::2.
type Pair struct{ Near, Far *Namespace }

// NewPair creates a pair that is removed at the end of the test.
func NewPair(t *testing.T) Pair {
	t.Helper()
	p := Pair{New(t), New(t)}
	p.Near.Do(func() {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "eth0",
			PeerNamespace: netlink.NsFd(p.Far.Handle())}); err != nil {
			t.Error(err)
		}
	})
	p.Near.Do(func() { ConfigureEth0(t, "192.0.2.1/24", "2001:db8::1/64") })
	p.Far.Do(func() { ConfigureEth0(t, "192.0.2.2/24", "2001:db8::2/64") })
	return p
}

// ConfigureEth0 brings up eth0 of the thread's namespace, with addresses that are usable immediately.
func ConfigureEth0(t *testing.T, addresses ...string) {
	t.Helper()
	link, err := netlink.LinkByName("eth0")
	if err == nil {
		err = netlink.LinkSetUp(link)
	}
	for _, text := range addresses {
		addr, failed := netlink.ParseAddr(text)
		if failed == nil {
			addr.Flags = syscall.IFA_F_NODAD
			failed = netlink.AddrAdd(link, addr)
		}
		err = errors.Join(err, failed)
	}
	if err != nil {
		t.Error(err)
	}
}

// Await calls f repeatedly, each time with a timeout of one second, until f returns no error.
func Await(t *testing.T, f func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), awaitLimit)
	defer cancel()
	for {
		attempt, stop := context.WithTimeout(ctx, time.Second)
		err := f(attempt)
		stop()
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
}
