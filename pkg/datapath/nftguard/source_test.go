package nftguard

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/testnet"
)

// neighbours are a node and an adjacent host, which has its own addresses and one of the node's in each family.
type neighbours struct {
	t              testing.TB
	node, neighbor *testnet.Namespace
}

var (
	nodeAddrs  = []netip.Prefix{netip.MustParsePrefix("192.0.2.10/24"), netip.MustParsePrefix("2001:db8:2::10/64")}
	otherAddrs = []netip.Prefix{netip.MustParsePrefix("192.0.2.11/24"), netip.MustParsePrefix("2001:db8:2::11/64")}
	nodeOnLo   = []netip.Prefix{netip.MustParsePrefix("198.51.100.10/32"), netip.MustParsePrefix("2001:db8:5::10/128")}
	nodeLinkIP = netip.MustParsePrefix("fe80::10/64")
)

func newNeighbours(t testing.TB) neighbours {
	t.Helper()
	n := neighbours{t, testnet.New(t), testnet.New(t)}
	n.node.Do(func() {
		n.check(netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "eth0",
			PeerNamespace: netlink.NsFd(int(n.neighbor.Handle()))}))
		n.check(netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "link0"}, PeerName: "link1"}))
		n.up("eth0", nodeAddrs...)
		n.up("lo", nodeOnLo...)
		n.up("link1")
		n.up("link0", nodeLinkIP)
		for _, device := range []string{"all", "eth0"} { // otherwise the kernel's own check drops IPv4, and the test proves nothing
			n.check(os.WriteFile("/proc/sys/net/ipv4/conf/"+device+"/accept_local", []byte("1"), 0))
			n.check(os.WriteFile("/proc/sys/net/ipv4/conf/"+device+"/rp_filter", []byte("0"), 0))
		}
		n.check(Install(rule))
	})
	n.neighbor.Do(func() {
		n.up("eth0", append(otherAddrs, nodeLinkIP)...)
		n.up("lo", nodeOnLo...)
		n.awaitUsable(append(otherAddrs, nodeLinkIP)...)
	})
	n.node.Do(func() { n.awaitUsable(append(nodeAddrs, nodeOnLo...)...) })
	return n
}

// timeout is the limit of each wait; only a lost packet reaches it.
const timeout = time.Minute

// awaitUsable waits until eth0 and addresses of this namespace are usable.
func (n neighbours) awaitUsable(addrs ...netip.Prefix) {
	n.t.Helper()
	for end := time.Now().Add(timeout); ; time.Sleep(time.Millisecond) {
		err := usable(addrs)
		if err == nil {
			return
		}
		if time.Now().After(end) {
			n.t.Error(err)
			return
		}
	}
}

// usable returns an error if the kernel would drop packets. Without a carrier it drops all packets of a device, also those that resolve neighbours. It creates
// the local route of an IPv6 address some time after the address.
func usable(addrs []netip.Prefix) error {
	link, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	if link.Attrs().OperState != netlink.OperUp {
		return errors.New("eth0 has no carrier")
	}
	for _, a := range addrs {
		family, host := netlink.FAMILY_V4, netip.PrefixFrom(a.Addr(), a.Addr().BitLen())
		if a.Addr().Is6() {
			family = netlink.FAMILY_V6
		}
		routes, err := netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_LOCAL}, netlink.RT_FILTER_TABLE)
		isLocal := func(r netlink.Route) bool {
			return r.Type == unix.RTN_LOCAL && r.Dst != nil && r.Dst.String() == host.String()
		}
		if err != nil || !slices.ContainsFunc(routes, isLocal) {
			return errors.Join(err, fmt.Errorf("%s has no local route", a))
		}
	}
	return nil
}

func (n neighbours) check(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Error(err)
	}
}

// up assigns addresses to a device that are usable immediately.
func (n neighbours) up(device string, addrs ...netip.Prefix) {
	n.t.Helper()
	link, err := netlink.LinkByName(device)
	if err != nil {
		n.t.Error(err)
		return
	}
	for _, a := range addrs {
		parsed, err := netlink.ParseAddr(a.String())
		n.check(err)
		parsed.Flags = unix.IFA_F_NODAD
		n.check(netlink.AddrAdd(link, parsed))
	}
	n.check(netlink.LinkSetUp(link))
}

const port = 2222

// arrives reports whether a datagram from an address of one place reaches an address of the node.
func (n neighbours) arrives(at *testnet.Namespace, from, to netip.Addr) (arrived bool) {
	n.t.Helper()
	var server *net.UDPConn
	n.node.Do(func() {
		var err error
		server, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, port)))
		n.check(err)
	})
	defer server.Close()
	at.Do(func() {
		client, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0)),
			net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, port)))
		if err != nil {
			n.t.Error(err)
			return
		}
		defer client.Close()
		_, err = client.Write([]byte("?"))
		n.check(err)
	})
	_ = server.SetReadDeadline(time.Now().Add(timeout))
	read := make(chan error, 1)
	go func() {
		_, err := server.Read(make([]byte, 1))
		read <- err
	}()
	for dropped := false; ; dropped = n.dropped().NodeSource.Packets > 0 {
		select {
		case err := <-read:
			if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
				n.t.Error(err)
			}
			return err == nil
		case <-time.After(50 * time.Millisecond): // wall clock: a dropped datagram must not come
			if dropped {
				return false
			}
		}
	}
}

func (n neighbours) dropped() (d Dropped) {
	n.t.Helper()
	n.node.Do(func() {
		var err error
		d, err = ReadDropped()
		n.check(err)
	})
	return d
}

// A neighbour cannot use an address of the node as its source, independent of the kernel's own check.
func TestPrivilegedNodeSource_FromOutsideIsDropped(t *testing.T) {
	t.Parallel()
	for i, family := range []string{"IPv4", "IPv6"} {
		t.Run(family, func(t *testing.T) {
			t.Parallel()
			n := newNeighbours(t)
			to := nodeAddrs[i].Addr()
			if !n.arrives(n.neighbor, otherAddrs[i].Addr(), to) {
				t.Error("the neighbour's own address does not arrive")
			}
			if got := n.dropped(); got != (Dropped{}) {
				t.Errorf("dropped %+v before anybody lied", got)
			}
			if n.arrives(n.neighbor, nodeOnLo[i].Addr(), to) {
				t.Error("the node's address arrives from outside")
			}
			if got := n.dropped(); got.NodeSource.Packets != 1 || got.NodeSource.Bytes == 0 || got.Unmarked.Packets != 0 {
				t.Errorf("dropped %+v, want one packet for its source", got)
			}
		})
	}
}

// A source without a route is not an address of the node: both lookups find nothing.
func TestPrivilegedNodeSource_WithoutARouteBackPasses(t *testing.T) {
	t.Parallel()
	n := newNeighbours(t)
	for i, from := range []string{"203.0.113.77/32", "2001:db8:77::1/128"} {
		source := netip.MustParsePrefix(from)
		n.neighbor.Do(func() { n.up("lo", source) })
		if !n.arrives(n.neighbor, source.Addr(), nodeAddrs[i].Addr()) {
			t.Errorf("a datagram from %s does not arrive", source)
		}
	}
	if got := n.dropped(); got != (Dropped{}) {
		t.Errorf("dropped %+v", got)
	}
}

// Traffic of the node to itself passes: over lo, over its own pair of links, within a VRF. So does traffic from a link-local address that the node has on
// another link.
func TestPrivilegedNodeSource_OwnTrafficPasses(t *testing.T) {
	t.Parallel()
	n := newNeighbours(t)
	for i := range nodeAddrs {
		if !n.arrives(n.node, nodeOnLo[i].Addr(), nodeAddrs[i].Addr()) {
			t.Errorf("%s does not reach %s over lo", nodeOnLo[i], nodeAddrs[i])
		}
	}
	n.throughOwnDevice()
	n.withinVRF()
	n.linkLocal()
	if got := n.dropped(); got != (Dropped{}) {
		t.Errorf("dropped %+v", got)
	}
}

// throughOwnDevice sends over a pair of links whose other end has the name in the rule.
func (n neighbours) throughOwnDevice() {
	n.t.Helper()
	n.node.Do(func() {
		n.check(netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "host"}, PeerName: rule.NodeDevice}))
		n.up(rule.NodeDevice)
		n.up("host", netip.MustParsePrefix("203.0.113.1/24"), netip.MustParsePrefix("2001:db8:3::1/64"))
		host, err := netlink.LinkByName("host")
		n.check(err)
		own, err := netlink.LinkByName(rule.NodeDevice)
		n.check(err)
		for _, to := range []string{"203.0.113.9", "2001:db8:3::9"} {
			n.check(netlink.NeighSet(&netlink.Neigh{LinkIndex: host.Attrs().Index, State: netlink.NUD_PERMANENT,
				IP: net.ParseIP(to), HardwareAddr: own.Attrs().HardwareAddr}))
			before := received(n.t, rule.NodeDevice)
			conn, err := net.Dial("udp", net.JoinHostPort(to, "2222"))
			if err != nil {
				n.t.Error(err)
				return
			}
			_, err = conn.Write([]byte("?"))
			n.check(errors.Join(err, conn.Close()))
			for end := time.Now().Add(timeout); received(n.t, rule.NodeDevice) == before; {
				if time.Now().After(end) {
					n.t.Errorf("nothing came out of %s", rule.NodeDevice)
					return
				}
			}
		}
	})
}

func received(t testing.TB, device string) uint64 {
	t.Helper()
	link, err := netlink.LinkByName(device)
	if err != nil {
		t.Error(err)
		return 0
	}
	return link.Attrs().Statistics.RxPackets
}

// withinVRF sends from an address of a VRF to the same address.
func (n neighbours) withinVRF() {
	n.t.Helper()
	n.node.Do(func() {
		vrf := &netlink.Vrf{LinkAttrs: netlink.LinkAttrs{Name: "vrf0"}, Table: 77}
		if err := netlink.LinkAdd(vrf); errors.Is(err, unix.EOPNOTSUPP) {
			n.t.Log("this kernel has no VRF (CONFIG_NET_VRF)")
			return
		} else if err != nil {
			n.t.Error(err)
			return
		}
		n.check(netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "in-vrf", MasterIndex: vrf.Index}, PeerName: "beyond"}))
		n.up("vrf0")
		n.up("in-vrf", netip.MustParsePrefix("203.0.114.1/24"), netip.MustParsePrefix("2001:db8:4::1/64"))
		for _, addr := range []string{"203.0.114.1", "2001:db8:4::1"} {
			n.check(exchange("vrf0", net.JoinHostPort(addr, "2222")))
		}
	})
}

// exchange sends datagrams to an address of a device, bound to that device at both ends, until one arrives: the kernel configures IPv6 addresses
// asynchronously.
func exchange(device, addr string) error {
	bound := func(_, _ string, c syscall.RawConn) (bindErr error) {
		err := c.Control(func(fd uintptr) { bindErr = unix.BindToDevice(int(fd), device) })
		return errors.Join(err, bindErr)
	}
	server, err := (&net.ListenConfig{Control: bound}).ListenPacket(context.Background(), "udp", addr)
	if err != nil {
		return err
	}
	defer server.Close()
	client, err := (&net.Dialer{Control: bound}).Dial("udp", addr)
	if err != nil {
		return err
	}
	defer client.Close()
	arrived, sent := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			_, err := client.Write([]byte("?"))
			select {
			case <-arrived:
				sent <- err
				return
			case <-time.After(200 * time.Millisecond):
			}
		}
	}()
	_ = server.SetReadDeadline(time.Now().Add(timeout))
	_, _, err = server.ReadFrom(make([]byte, 1))
	close(arrived)
	return errors.Join(err, <-sent)
}

// linkLocal sends from a link-local address that the node has on another link.
func (n neighbours) linkLocal() {
	n.t.Helper()
	var own netip.Addr
	n.node.Do(func() {
		link, err := netlink.LinkByName("eth0")
		n.check(err)
		n.check(netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP("fe80::20"), Mask: net.CIDRMask(64, 128)},
			Flags: unix.IFA_F_NODAD}))
		n.awaitUsable(netip.MustParsePrefix("fe80::20/128"))
		own = netip.MustParseAddr("fe80::20").WithZone("eth0")
	})
	if !n.arrives(n.neighbor, nodeLinkIP.Addr().WithZone("eth0"), own) {
		n.t.Error("a link-local address does not arrive")
	}
}
