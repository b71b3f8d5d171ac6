package nodehealthprober

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/pkg/icmpecho"
	"github.com/waggle-net/waggle/pkg/testnet"
)

// setLink sets the far end up or down.
func setLink(t *testing.T, far *testnet.Namespace, up bool) {
	t.Helper()
	far.Do(func() {
		link, err := netlink.LinkByName("eth0")
		if err == nil && up {
			testnet.ConfigureEth0(t, "2001:db8::2/64") // the address was removed while the link was down
		} else if err == nil {
			err = netlink.LinkSetDown(link)
		}
		if err != nil {
			t.Error(err)
		}
	})
}

// hosts has the addresses of the far end.
var hosts = []netip.Addr{netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::2")}

// ICMP and HTTP of both families between two hosts: with a responder, without a responder, and without a link.
func TestPrivilegedSockets_BetweenTwoHosts(t *testing.T) {
	t.Parallel()
	p := testnet.NewPair(t)
	const port = 4240
	var l net.Listener
	p.Far.Do(func() {
		var err error
		if l, err = (sockets{}).ListenHello(t.Context(), port); err != nil {
			t.Error(err)
		}
	})
	ctx, stop := context.WithCancel(t.Context())
	health, _ := cell.NewSimpleHealth()
	var running sync.WaitGroup
	known := viewOf(t, "far", true, "far", "near", "third")
	running.Go(func() { _ = responder{Kernel: listening{l: l}, View: known}.run(ctx, health) })
	t.Cleanup(func() { stop(); running.Wait() })

	s := sockets{icmpecho.New()}
	t.Cleanup(s.Close)
	p.Near.Enter()
	for _, to := range hosts {
		testnet.Await(t, func(ctx context.Context) error {
			latency, err := s.Echo(ctx, to)
			if err == nil && latency <= 0 {
				t.Errorf("ICMP to %s took %v", to, latency)
			}
			return err
		})
		testnet.Await(t, func(ctx context.Context) error {
			latency, theirs, err := s.Hello(ctx, netip.AddrPortFrom(to, port), "near")
			if err == nil && (latency <= 0 || theirs == nil || *theirs != *known.with("near")) {
				t.Errorf("HTTP to %s took %v, digest %v", to, latency, theirs)
			}
			return err
		})
		if _, _, err := s.Hello(ctx, netip.AddrPortFrom(to, port+1), "near"); !errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, icmpecho.ErrLocal) {
			t.Errorf("HTTP to %s without a responder: %v", to, err)
		}
	}
	setLink(t, p.Far, false)
	for _, to := range hosts {
		short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		if _, err := s.Echo(short, to); err == nil || errors.Is(err, icmpecho.ErrLocal) {
			t.Errorf("ICMP to %s without a link: %v", to, err)
		}
		if _, _, err := s.Hello(short, netip.AddrPortFrom(to, port), "near"); err == nil || errors.Is(err, icmpecho.ErrLocal) {
			t.Errorf("HTTP to %s without a link: %v", to, err)
		}
		cancel()
	}
	setLink(t, p.Far, true)
	for _, to := range hosts {
		testnet.Await(t, func(ctx context.Context) error {
			_, err := s.Echo(ctx, to)
			_, _, failed := s.Hello(ctx, netip.AddrPortFrom(to, port), "near")
			return errors.Join(err, failed)
		})
	}
}

// A dial ends with its probe, before the kernel's timeout.
func TestPrivilegedSockets_DialEndsWithTheProbe(t *testing.T) {
	t.Parallel()
	p := testnet.NewPair(t)
	p.Near.Enter()
	s := sockets{icmpecho.New()}
	t.Cleanup(s.Close)
	testnet.Await(t, func(ctx context.Context) error { _, err := s.Echo(ctx, hosts[0]); return err })
	p.Far.Do(func() { // SYNs are dropped: the address is removed, and its neighbor entry stays
		link, err := netlink.LinkByName("eth0")
		addr, failed := netlink.ParseAddr("192.0.2.2/24")
		if err := errors.Join(err, failed, netlink.AddrDel(link, addr)); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, _, err := s.Hello(ctx, netip.AddrPortFrom(hosts[0], 4240), "near"); err == nil || describe(err) != "Connection timed out" {
		t.Errorf("error %v, want that of the deadline", err)
	}
	// The socket is closed: no connection of the namespace is in SYN_SENT (02).
	text, err := os.ReadFile("/proc/thread-self/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 3 && fields[3] == "02" {
			t.Errorf("a dial goes on: %s", line)
		}
	}
}

func TestSockets_API(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "health.sock")
	l, err := (sockets{}).ListenAPI(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("the socket is %v, %v", info.Mode(), err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}
