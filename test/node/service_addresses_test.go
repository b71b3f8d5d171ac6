package node_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/test/nodekit"
)

// The node gets another address on its uplink, and another external device. Node ports are served there, pods leave by the device under its address, and the
// agent is not restarted. Removed addresses are no longer served.
func TestPrivilegedService_NodePortFollowsTheNodesAddresses(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		all := mode.packets // every address serves, not only the first one of each device and family
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			args := mode.args
			if all {
				args = append([]string{"--nodeport-addresses=0.0.0.0/0,::/0"}, args...)
			}
			m := newServiceFixture(t, args...)
			pid := m.AgentPID()
			clients := []nodekit.NetNS{m.OutsideHost(), m.pod(t, "client")}
			if !mode.packets {
				clients = append(clients, m.Host())
			}
			m.service(t, "web", webRest+fmt.Sprintf(nodePorts, "NodePort", "Cluster"))
			m.backends(t, "one")
			for _, addr := range uplinks {
				m.ready(t, netip.AddrPortFrom(addr, webNodePort), 1)
			}
			m.servedFrom(t, clients, uplinks)

			m.uplinkAddressChanges(t, clients, all)
			m.secondUplink(t, clients)
			if m.AgentPID() != pid {
				t.Error("the agent is another process")
			}
		})
	}
}

// uplinkAddressChanges adds addresses to the uplink if all addresses serve, or replaces the addresses if only the first one serves; then it restores them.
func (m *serviceFixture) uplinkAddressChanges(t *testing.T, clients []nodekit.NetNS, all bool) {
	t.Helper()
	was := []netip.Prefix{nodekit.UplinkIPv4, nodekit.UplinkIPv6}
	is := []netip.Prefix{netip.MustParsePrefix("192.0.2.77/32"), netip.MustParsePrefix("2001:db8:2::77/64")}
	to := []netip.Addr{is[0].Addr(), is[1].Addr()}
	m.keepNeighbours(t, slices.Concat(uplinks, to))
	change := func(device string, add, del []netip.Prefix) func() error {
		return func() (err error) {
			for _, p := range add {
				err = errors.Join(err, addAddr(device, p))
			}
			for _, p := range del {
				err = errors.Join(err, delAddr(device, p))
			}
			return errors.Join(err, defaultRoute(device))
		}
	}
	replaced := was
	if all {
		replaced = nil
	}
	m.servedAfter(t, "addresses of the uplink", to, change("eth0", is, replaced))
	m.servedFrom(t, clients, to)
	if all {
		m.servedFrom(t, clients, uplinks)
	} else {
		m.notServed(t, clients, uplinks)
	}
	m.servedAfter(t, "addresses of the uplink as they were", uplinks, change("eth0", replaced, is))
	m.servedFrom(t, clients, uplinks)
	m.notServed(t, clients, to)
}

// keepNeighbours lets the host outside send packets for these addresses to the node, also while the node does not have them.
func (m *serviceFixture) keepNeighbours(t *testing.T, addrs []netip.Addr) {
	t.Helper()
	var mac net.HardwareAddr
	if err := m.Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err == nil {
			mac = link.Attrs().HardwareAddr
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := m.Outside(func() error {
		link, err := netlink.LinkByName("eth0")
		for _, addr := range addrs {
			if err == nil {
				err = netlink.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, IP: addr.AsSlice(), HardwareAddr: mac, State: netlink.NUD_PERMANENT})
			}
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// secondUplink adds another external device to the node, and removes it.
func (m *serviceFixture) secondUplink(t *testing.T, clients []nodekit.NetNS) {
	t.Helper()
	here := []netip.Prefix{netip.MustParsePrefix("198.51.100.1/24"), netip.MustParsePrefix("2001:db8:7::1/64")}
	there := []netip.Prefix{netip.MustParsePrefix("198.51.100.2/24"), netip.MustParsePrefix("2001:db8:7::2/64")}
	to := []netip.Addr{here[0].Addr(), here[1].Addr()}
	m.servedAfter(t, "another device", to, func() error { return m.AddUplink("wan0", here, there) })
	m.servedFrom(t, clients, to)
	m.servedFrom(t, clients, uplinks)

	serveName(t, m.OutsideHost(), "outside", 9000)
	for i := range there {
		for _, network := range networks {
			m.seesClient(t, m.pods["client"], network, netip.AddrPortFrom(there[i].Addr(), 9000), to[i])
			m.seesClient(t, m.pods["client"], network, netip.AddrPortFrom(outsideAddr(i == 1), 9000), uplinks[i])
		}
	}
	if err := m.Do(func() error {
		link, err := netlink.LinkByName("wan0")
		if err != nil {
			return err
		}
		return netlink.LinkDel(link)
	}); err != nil {
		t.Fatal(err)
	}
	m.notServed(t, clients, to)
	m.servedFrom(t, clients, uplinks)
}

// servedFrom requires that clients reach the node port at addresses.
func (m *serviceFixture) servedFrom(t *testing.T, clients []nodekit.NetNS, addrs []netip.Addr) {
	t.Helper()
	each(addrs, webNodePort, func(network string, to netip.AddrPort) {
		for _, client := range clients {
			m.reaches(t, client, network, to, "one")
		}
	})
}

// servedAfter performs a change and waits until the host outside gets a reply from the node port at each of the addresses.
func (m *serviceFixture) servedAfter(t *testing.T, what string, addrs []netip.Addr, change func() error) {
	t.Helper()
	if err := m.Do(change); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	eventually(t, func() error {
		var mu sync.Mutex // guards errs
		var errs []error
		each(addrs, webNodePort, func(network string, to netip.AddrPort) {
			if _, err := requestBriefly(t.Context(), m.OutsideHost(), network, to); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, fmt.Errorf("%s: %s over %s is not served: %w", what, to, network, err))
			}
		})
		return errors.Join(errs...)
	})
}

// requestFor is [request] with a timeout of the caller.
func requestFor(from nodekit.NetNS, network string, to netip.AddrPort, timeout time.Duration) (served, error) {
	return requestWith(context.Background(), from, &net.Dialer{Timeout: timeout}, network, to)
}

// notServed waits until the node port is no longer served at addresses, and requires that no client gets a reply then.
func (m *serviceFixture) notServed(t *testing.T, clients []nodekit.NetNS, addrs []netip.Addr) {
	t.Helper()
	for _, addr := range addrs {
		m.gone(t, netip.AddrPortFrom(addr, webNodePort))
	}
	each(addrs, webNodePort, func(network string, to netip.AddrPort) {
		var all sync.WaitGroup
		for _, client := range clients {
			all.Go(func() {
				if a, err := requestFor(client, network, to, 500*time.Millisecond); err == nil {
					t.Errorf("%s over %s, which is no address of the node any more, answers: %+v", to, network, a)
				}
			})
		}
		all.Wait()
	})
}
