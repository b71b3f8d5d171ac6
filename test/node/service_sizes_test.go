package node_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/test/nodekit"
)

// Streams in large segments and fragmented datagrams are translated completely, also where a part of the path has a smaller MTU and sends ICMP errors.
func TestPrivilegedService_StreamsAndFragments(t *testing.T) {
	t.Parallel()
	m := newServiceFixture(t, "--bpf-lb-sock=false")
	client := m.pod(t, "client")
	one := m.pod(t, "one")
	m.service(t, "web", webRest+fmt.Sprintf(nodePorts, "NodePort", "Cluster"))
	m.backends(t, "one")
	try := func(from nodekit.NetNS, to netip.AddrPort, datagrams ...int) {
		t.Helper()
		at := netip.AddrPortFrom(one.Addr(to.Addr().Is6()), 8080)
		for _, size := range datagrams {
			if err := nodekit.UDPThrough(from, to, one, at, size); err != nil {
				t.Errorf("datagram of %d bytes: %v", size, err)
			}
		}
		if err := nodekit.TCPThrough(from, to, one, at, 1<<20); err != nil {
			t.Error(err)
		}
	}
	for _, addr := range uplinks {
		m.ready(t, netip.AddrPortFrom(addr, webNodePort), 1)
	}
	for i := range families {
		try(client, netip.AddrPortFrom(webAddrs[i], 80), 100, 9000)
		try(one, netip.AddrPortFrom(webAddrs[i], 80), 100, 9000)
		try(m.OutsideHost(), netip.AddrPortFrom(uplinks[i], webNodePort), 100, 9000)
	}
	if err := m.Do(func() error {
		uplink, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.LinkSetMTU(uplink, 1300)
	}); err != nil {
		t.Fatal(err)
	}
	for i := range families { // a datagram would be lost with the ICMP error that reports its size
		try(m.OutsideHost(), netip.AddrPortFrom(uplinks[i], webNodePort))
	}
}
