package node_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/test/nodekit"
	"github.com/waggle-net/waggle/test/nodekit/load"
)

// Connections and UDP flows of clients outside end when the source ranges no longer include their addresses, and other clients keep their flows.
func (m *serviceFixture) sourceRangesNarrow(t *testing.T, _ bool) {
	deniedClient, friend := []netip.Prefix{nodekit.OutsideIPv4, nodekit.OutsideIPv6}, []netip.Prefix{
		netip.MustParsePrefix("192.0.2.5/24"), netip.MustParsePrefix("2001:db8:2::5/64")}
	m.moreOutside(t, friend)
	m.balancer(t, "loadBalancerSourceRanges: [192.0.2.0/29, \"2001:db8:2::/125\"]")
	m.backends(t, "one")
	leave := map[bool][]*line{} // by whether they belong to the friend
	for i, addr := range balancerAddrs {
		for _, network := range networks {
			m.served(t, netip.AddrPortFrom(addr, 80).String()+"/"+strings.ToUpper(network), 1)
			for isFriend, own := range map[bool]netip.Prefix{false: deniedClient[i], true: friend[i]} {
				l := &line{network: network, to: netip.AddrPortFrom(addr, 80)}
				l.dialFrom(t, m.OutsideHost(), own.Addr())
				t.Cleanup(func() { _ = l.Close() })
				l.server = l.request(t)
				l.request(t) // the second datagram establishes the flow
				leave[isFriend] = append(leave[isFriend], l)
			}
		}
	}
	m.balancer(t, "loadBalancerSourceRanges: [192.0.2.5/32, \"2001:db8:2::5/128\"]")
	for _, l := range leave[false] {
		eventually(t, func() error {
			if a, err := requestWithin(l.Conn, noReplyTimeout); err == nil {
				return fmt.Errorf("%s over %s goes on outside of the source ranges: %+v", l.to, l.network, a)
			}
			return nil
		})
	}
	for _, l := range leave[false] {
		if a, err := requestWithin(l.Conn, noReplyTimeout); err == nil {
			t.Errorf("%s over %s goes on again outside of the source ranges: %+v", l.to, l.network, a)
		}
	}
	for _, l := range leave[true] {
		l.request(t)
	}
}

// moreOutside adds addresses to the host outside until the test ends.
func (m *serviceFixture) moreOutside(t *testing.T, addrs []netip.Prefix) {
	t.Helper()
	change := func(f func(netlink.Link, *netlink.Addr) error) error {
		return m.Outside(func() error {
			link, err := netlink.LinkByName("eth0")
			for _, addr := range addrs {
				if err != nil {
					return err
				}
				// Without duplicate address detection, the address is usable at once.
				err = f(link, &netlink.Addr{IPNet: &net.IPNet{IP: addr.Addr().AsSlice(), Mask: net.CIDRMask(addr.Bits(), addr.Addr().BitLen())}, Flags: unix.IFA_F_NODAD})
			}
			return err
		})
	}
	if err := change(netlink.AddrAdd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := change(netlink.AddrDel); err != nil {
			t.Error(err)
		}
	})
}

// dialFrom is [line.dial] from one of the addresses of a place.
func (l *line) dialFrom(t *testing.T, from nodekit.NetNS, own netip.Addr) {
	t.Helper()
	dialer := net.Dialer{Timeout: answerTimeout}
	if dialer.LocalAddr = net.Addr(&net.UDPAddr{IP: own.AsSlice()}); l.network == "tcp" {
		dialer.LocalAddr = &net.TCPAddr{IP: own.AsSlice()}
	}
	if err := from.Do(func() (err error) {
		l.Conn, err = dialer.Dial(l.network, l.to.String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// Clients outside of a service without backends get resets and ICMP errors. Packets to link-layer multicast and broadcast addresses get none, and the rate for
// floods is limited.
func (m *serviceFixture) rejectionsAreLimited(t *testing.T, _ bool) {
	m.balancer(t, "externalTrafficPolicy: Cluster")
	m.backends(t)
	host := hostOutside(t, m.Node)
	group, broadcast := host, host
	group.via, broadcast.via = net.HardwareAddr{1, 0, 0x5e, 0, 0, 1}, net.HardwareAddr{255, 255, 255, 255, 255, 255}
	var flood [][]byte
	for i, addr := range balancerAddrs {
		own := []netip.Addr{nodekit.OutsideIPv4.Addr(), nodekit.OutsideIPv6.Addr()}[i]
		service := netip.AddrPortFrom(addr, 80)
		for _, network := range networks {
			m.served(t, service.String()+"/"+strings.ToUpper(network), 0)
			m.rejected(t, m.OutsideHost(), network, service)
			request := func(a attacker, from netip.Addr) []byte {
				if network == "tcp" {
					return a.tcp(a.from(from), service, &layers.TCP{SYN: true})
				}
				return a.datagram(a.from(from), service)
			}
			for _, to := range []struct {
				name     string
				attacker attacker
				answers  int
			}{{"the node", host, 1}, {"a group of the link", group, 0}, {"all of the link", broadcast, 0}} {
				from := host.spoof(addr.Is6())
				if n := answers(t, m.OutsideHost(), request(to.attacker, from), host.source, from, to.answers > 0); n != to.answers {
					t.Errorf("%s over %s: requests to %s got %d answers, want %d", service, network, to.name, n, to.answers)
				}
			}
			for range 1024 {
				flood = append(flood, request(host, own))
			}
		}
	}
	turn := load.TakeTurn(t)
	eventually(t, func() error {
		tick := nextTick(t)
		before := m.receivedOutside(t)
		ctx, stop := context.WithTimeout(t.Context(), bpf.CtDuration(1)*3/4)
		defer stop()
		sent, err := turn.Flood(ctx, m.OutsideHost(), "eth0", 50000, flood)
		if err != nil {
			t.Fatal(err)
		}
		answers := m.receivedOutside(t) - before
		for answers < refusalsInATick/2 && tickOf(t) == tick { // a busy kernel delays some
			time.Sleep(time.Millisecond)
			answers = m.receivedOutside(t) - before
		}
		if now := tickOf(t); now != tick {
			return fmt.Errorf("the flood began in tick %d and ended in tick %d, with %d answers to %d requests", tick, now, answers, sent)
		}
		if sent < 2*refusalsInATick {
			return fmt.Errorf("%d requests were sent, too few for a limit of %d", sent, refusalsInATick)
		}
		// All clients outside share one limit. The host receives some frames of neighbour discovery as well.
		if answers < refusalsInATick/2 || answers > refusalsInATick*5/4 {
			t.Errorf("%d requests in one tick have %d answers, want about %d", sent, answers, refusalsInATick)
		}
		return nil
	})
	if err := turn.Release(); err != nil {
		t.Error(err)
	}
}

// refusalsInATick is the number of resets and ICMP errors that the datapath sends to clients outside in a tick: reject_rate in bpf/lib/reject.h.
const refusalsInATick = 1024

// tickOf returns the current tick of conntrack's clock.
func tickOf(t *testing.T) uint32 {
	t.Helper()
	now, err := bpf.CtNow()
	if err != nil {
		t.Fatal(err)
	}
	return now
}

// answers sends a frame and returns the number of frames that are sent to a link-layer address and contain an IP address. It waits for one if required.
func answers(t *testing.T, at nodekit.NetNS, frame []byte, mac net.HardwareAddr, addr netip.Addr, required bool) (n int) {
	t.Helper()
	answer := func(f []byte) bool { return bytes.Equal(f[:6], mac) && bytes.Contains(f, addr.AsSlice()) }
	var until func([]byte) bool
	if required {
		until = answer
	}
	frames, err := nodekit.CaptureUntil(at, "eth0", until, func() error { return nodekit.SendFrame(at, "eth0", frame) })
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range frames {
		if answer(f) {
			n++
		}
	}
	return n
}

// nextTick returns when a tick of conntrack's clock begins.
func nextTick(t *testing.T) uint32 {
	t.Helper()
	for before := tickOf(t); ; time.Sleep(time.Millisecond) {
		if now := tickOf(t); now != before {
			return now
		}
	}
}

// receivedOutside returns the number of packets that the host outside has received from the node.
func (m *serviceFixture) receivedOutside(t *testing.T) (n uint64) {
	t.Helper()
	if err := m.Outside(func() error {
		link, err := netlink.LinkByName("eth0")
		if err == nil {
			n = link.Attrs().Statistics.RxPackets
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return n
}
