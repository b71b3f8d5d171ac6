package node_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/waggle-net/waggle/test/nodekit"
)

// otherAddressesOfTheNode sends to a process of the node at every address for which the node's stack delivers packets locally. A pod that may reach the entity
// world reaches the process at no address; a pod that may reach the entity host reaches it at each address that policies know.
func (w *world) otherAddressesOfTheNode(t *testing.T) {
	client := w.party("x/a").pod
	e := endsOf(t, client)
	loopbackIsRouted(t, w.Node)
	linkLocal := linkLocalOf(t, w.Node, e.host)
	heard := listenOnTheNode(t, w.Node)
	type target struct {
		name   string
		addr   netip.Addr
		isNode bool // an address of the node according to policies
	}
	targets := []target{
		{"the node's own address", nodekit.UplinkIPv4.Addr(), true},
		{"the broadcast address of its subnet", netip.MustParseAddr("192.0.2.255"), true},
		{"loopback", netip.MustParseAddr("127.0.0.1"), false},
		{"the node's own IPv6 address", nodekit.UplinkIPv6.Addr(), true},
		{"the anycast address of its IPv6 subnet", netip.MustParseAddr("2001:db8:2::"), true},
		{"the link-local address of the pod's gateway", linkLocal, false},
	}
	for _, policy := range []struct {
		entity string
		isHost bool
	}{{"world", false}, {"host", true}} {
		w.apply(t, ciliumPolicy("x", subjectA+"egress: [{toEntities: ["+policy.entity+"]}]"))
		for _, to := range targets {
			t.Run("entity "+policy.entity+", "+to.name, func(t *testing.T) {
				src := e.ipv6
				if to.addr.Is4() {
					src = e.ipv4
				}
				if err := nodekit.SendFrame(client, "eth0", udp(t, e.pod, e.peer, src, to.addr, 64)); err != nil {
					t.Fatal(err)
				}
				err := heard(to.addr.Is6(), policy.isHost && to.isNode)
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// loopbackIsRouted lets the node's stack accept packets to 127/8 from links, as kube-proxy does for node ports on localhost.
func loopbackIsRouted(t *testing.T, node *nodekit.Node) {
	t.Helper()
	if err := node.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/conf/all/route_localnet", []byte("1"), 0) }); err != nil {
		t.Fatal(err)
	}
}

// linkLocalOf waits until the link-local address of a link of the node is usable, and returns it.
func linkLocalOf(t *testing.T, node *nodekit.Node, link string) (found netip.Addr) {
	t.Helper()
	eventually(t, func() error {
		return node.Do(func() error {
			l, err := net.InterfaceByName(link)
			if err != nil {
				return err
			}
			addrs, err := l.Addrs()
			for _, a := range addrs {
				if prefix, bad := netip.ParsePrefix(a.String()); bad == nil && prefix.Addr().Is6() && prefix.Addr().IsLinkLocalUnicast() {
					found = prefix.Addr()
					return nil
				}
			}
			return errors.Join(err, fmt.Errorf("%s has no link-local address", link))
		})
	})
	return found
}

// listenOnTheNode opens the port of [udp] on every address of the node. heard returns an error when a datagram is wanted and does not arrive, or
// is not wanted and arrives within a short time.
func listenOnTheNode(t *testing.T, node *nodekit.Node) (heard func(ipv6, want bool) error) {
	t.Helper()
	servers := map[bool]net.PacketConn{}
	for ipv6, network := range map[bool]string{false: "udp4", true: "udp6"} {
		if err := nodekit.Bind(node.Host(), func() (err error) {
			servers[ipv6], err = net.ListenPacket(network, ":2222")
			return err
		}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = servers[ipv6].Close() })
	}
	return func(ipv6, want bool) error {
		timeout := 200 * time.Millisecond
		if want {
			timeout = 15 * time.Second
		}
		_ = servers[ipv6].SetReadDeadline(time.Now().Add(timeout))
		_, from, err := servers[ipv6].ReadFrom(make([]byte, 64))
		switch {
		case want && err != nil:
			return fmt.Errorf("nothing came: %w", err)
		case !want && err == nil:
			return fmt.Errorf("a process of the node has heard %s", from)
		}
		return nil
	}
}
