package icmpecho

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/mac"
	"github.com/waggle-net/waggle/pkg/testnet"
)

// hosts are the addresses of the far end.
var hosts = []netip.Addr{netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::2")}

// A request of a whole pinger has the specified size and is never fragmented: a request larger than the MTU of the peer's device gets no reply, although the
// device of this node would accept it.
func TestPrivilegedPinger_Whole(t *testing.T) {
	t.Parallel()
	p := testnet.NewPair(t)
	p.Near.Enter()
	whole, pieces := NewWhole(), New()
	t.Cleanup(whole.Close)
	t.Cleanup(pieces.Close)
	for _, to := range hosts {
		testnet.Await(t, func(ctx context.Context) error { _, err := pieces.Echo(ctx, Request{To: to, Size: 1501}); return err })
	}
	const mtu = 1400
	p.Far.Do(func() {
		link, err := netlink.LinkByName("eth0")
		if err := errors.Join(err, netlink.LinkSetMTU(link, mtu)); err != nil {
			t.Error(err)
		}
	})
	for _, to := range hosts {
		for _, size := range []int{0, 1281, mtu} {
			testnet.Await(t, func(ctx context.Context) error { _, err := whole.Echo(ctx, Request{To: to, Size: size}); return err })
		}
		short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		if _, err := whole.Echo(short, Request{To: to, Size: 1500}); err == nil || errors.Is(err, ErrLocal) { // a veth reports some drops at once, as ENOBUFS
			t.Errorf("%s: the error of a packet of 1500 bytes is %v, want a loss", to, err)
		}
		cancel()
		if _, err := whole.Echo(t.Context(), Request{To: to, Size: 1501}); !errors.Is(err, syscall.EMSGSIZE) || errors.Is(err, ErrLocal) {
			t.Errorf("%s: the error of a packet longer than the device takes is %v, want EMSGSIZE", to, err)
		}
	}
}

// A listener records the senders of requests, and no other hosts.
func TestPrivilegedListener_RecordsSenders(t *testing.T) {
	t.Parallel()
	p := testnet.NewPair(t)
	var l Listener
	p.Far.Do(l.Open)
	t.Cleanup(l.Close)
	p.Near.Enter()
	s := New()
	t.Cleanup(s.Close)
	for i, from := range []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")} {
		if at := l.Heard(from); !at.IsZero() {
			t.Errorf("%s was heard at %v, before its first request", from, at)
		}
		began := time.Now()
		testnet.Await(t, func(ctx context.Context) error { _, err := s.Echo(ctx, Request{To: hosts[i]}); return err })
		testnet.Await(t, func(context.Context) error {
			if l.Heard(from).Before(began) {
				return errors.New("the request was not heard")
			}
			return nil
		})
		if at := l.Heard(hosts[i]); !at.IsZero() {
			t.Errorf("%s was heard at %v and has sent replies alone", hosts[i], at)
		}
	}
}

// Large numbers of replies of other pings on the node are neither accepted as replies to a prober nor hide its own.
func TestPrivilegedPinger_OtherPings(t *testing.T) {
	t.Parallel()
	p := testnet.NewPair(t)
	p.Near.Enter()
	s := New()
	t.Cleanup(s.Close)
	for _, to := range hosts {
		testnet.Await(t, func(ctx context.Context) error { _, err := s.Echo(ctx, Request{To: to}); return err })
		socket, err := s.socket(to.Is6())
		if err != nil {
			t.Fatal(err)
		}
		_ = socket.conn.SetWriteDeadline(time.Time{})
		waiting, w := socket.add(Request{To: to}) // its request is not sent
		for i := range 5000 {                     // other identifiers, and the prober's identifier with other data
			other := echoSocket{ipv6: to.Is6(), id: uint16(i)}
			if i%2 == 0 {
				other.id = socket.id
			}
			if _, err := socket.conn.WriteToIP(other.request(waiting, &echoWait{data: echoNonce, nonce: uint64(i)}), &net.IPAddr{IP: to.AsSlice()}); err != nil {
				t.Fatal(err)
			}
		}
		testnet.Await(t, func(ctx context.Context) error { _, err := s.Echo(ctx, Request{To: to}); return err })
		if len(w.reply) > 0 {
			t.Errorf("%s: the reply of another ping counts", to)
		}
		socket.remove(waiting)
	}
}

// A request to a neighbour bypasses the routes of this node, which lead elsewhere, and has the specified source. The reply takes the routes of the peer.
func TestPrivilegedPinger_Hop(t *testing.T) {
	t.Parallel()
	p := testnet.NewPair(t)
	from := []string{"198.51.100.1", "2001:db8:5::1"}
	to := []string{"198.51.100.2", "2001:db8:5::2"}
	var hop Hop
	p.Far.Do(func() {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			t.Error(err)
			return
		}
		hop.MAC, err = mac.FromHardwareAddr(link.Attrs().HardwareAddr)
		for i, near := range []string{"192.0.2.1", "2001:db8::1"} {
			err = errors.Join(err, onLoopback(to[i]), netlink.RouteAdd(&netlink.Route{Dst: netlink.NewIPNet(net.ParseIP(from[i])), Gw: net.ParseIP(near)}))
		}
		if err != nil {
			t.Error(err)
		}
	})
	p.Near.Enter()
	link, err := netlink.LinkByName("eth0")
	for i := range to {
		err = errors.Join(err, onLoopback(from[i]), netlink.RouteAdd(&netlink.Route{Dst: netlink.NewIPNet(net.ParseIP(to[i])), Type: unix.RTN_BLACKHOLE}))
	}
	if err != nil {
		t.Fatal(err)
	}
	hop.Link = link.Attrs().Index
	s := NewWhole()
	t.Cleanup(s.Close)
	for i := range to {
		r := Request{To: netip.MustParseAddr(to[i]), Size: 1281}
		if _, err := s.Echo(t.Context(), r); err == nil {
			t.Errorf("%s: a request passes the routes", r.To)
		}
		r.From, r.Hop = netip.MustParseAddr(from[i]), &hop
		testnet.Await(t, func(ctx context.Context) error { _, err := s.Echo(ctx, r); return err })
		gone := hop
		gone.Link = 1 << 20
		r.Hop = &gone
		if _, err := s.Echo(t.Context(), r); !errors.Is(err, syscall.ENXIO) {
			t.Errorf("%s: the error of a link that is gone is %v, want ENXIO", r.To, err)
		}
	}
}

// A request leaves by the specified device, even if a better route uses another device.
func TestPrivilegedPinger_Device(t *testing.T) {
	t.Parallel()
	p := testnet.NewPair(t)
	p.Near.Enter()
	link, err := netlink.LinkByName("eth0")
	if err := errors.Join(err, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "other", Flags: net.FlagUp}, PeerName: "beyond"})); err != nil {
		t.Fatal(err)
	}
	other, err := netlink.LinkByName("other")
	for _, to := range hosts {
		err = errors.Join(err, netlink.RouteAdd(&netlink.Route{Dst: netlink.NewIPNet(to.AsSlice()), LinkIndex: other.Attrs().Index}))
	}
	if err != nil {
		t.Fatal(err)
	}
	s := NewWhole()
	t.Cleanup(s.Close)
	for _, to := range hosts {
		testnet.Await(t, func(ctx context.Context) error {
			_, err := s.Echo(ctx, Request{To: to, Device: link.Attrs().Index})
			return err
		})
		short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		if _, err := s.Echo(short, Request{To: to}); err == nil {
			t.Errorf("%s: a request without a device does not follow the routes", to)
		}
		cancel()
	}
}

// A request has the specified source, which must be an address of this node.
func TestPrivilegedPinger_From(t *testing.T) {
	t.Parallel()
	p := testnet.NewPair(t)
	from := []string{"198.51.100.1", "2001:db8:5::1"}
	var l Listener
	p.Far.Do(func() {
		l.Open()
		for i, near := range []string{"192.0.2.1", "2001:db8::1"} {
			if err := netlink.RouteAdd(&netlink.Route{Dst: netlink.NewIPNet(net.ParseIP(from[i])), Gw: net.ParseIP(near)}); err != nil {
				t.Error(err)
			}
		}
	})
	t.Cleanup(l.Close)
	p.Near.Enter()
	s := NewWhole()
	t.Cleanup(s.Close)
	for i, to := range hosts {
		r := Request{To: to, From: netip.MustParseAddr(from[i])}
		if _, err := s.Echo(t.Context(), r); err == nil {
			t.Errorf("%s: a source that is not on this node has a reply", r.From)
		}
		if err := onLoopback(from[i]); err != nil {
			t.Fatal(err)
		}
		testnet.Await(t, func(ctx context.Context) error { _, err := s.Echo(ctx, r); return err })
		testnet.Await(t, func(context.Context) error {
			if l.Heard(r.From).IsZero() {
				return fmt.Errorf("no request from %s was heard", r.From)
			}
			return nil
		})
	}
}

// onLoopback assigns an address to lo.
func onLoopback(addr string) error {
	link, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.AddrAdd(link, &netlink.Addr{IPNet: netlink.NewIPNet(net.ParseIP(addr)), Flags: syscall.IFA_F_NODAD})
}

// Without the capability to open a raw socket, the error is ErrLocal.
func TestPrivilegedPinger_WithoutCapability(t *testing.T) {
	t.Parallel()
	ns := testnet.New(t)
	ns.Do(func() {
		if err := dropRaw(); err != nil {
			t.Error(err)
			return
		}
		s := New()
		defer s.Close()
		for _, to := range hosts {
			_, err := s.Echo(t.Context(), Request{To: to})
			if want := "not probed: open a raw socket for ICMP: operation not permitted: give the agent CAP_NET_RAW"; !errors.Is(err, ErrLocal) || err.Error() != want {
				t.Errorf("error %v, want %q", err, want)
			}
		}
	})
}

// dropRaw drops all capabilities of the calling thread, which must end with the test.
func dropRaw() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	return unix.Capset(&header, &none[0])
}
