package node_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/test/nodekit"
)

// Two nodes have an MTU of 9000, the third one has 1500. The agents report the smaller MTU of the paths to the third node, and senders learn it, with and
// without a tunnel. Large packets pass unchanged between the first two nodes.
func TestPrivilegedMTU_SmallerOnOneNode(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]struct {
		args     []string
		overhead int
	}{"tunnel": {[]string{"--routing-mode=tunnel"}, 50}, "native": {[]string{"--routing-mode=native", "--auto-direct-node-routes"}, 0}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, all := newKubeCluster(t, 3, mode.args...)
			for _, n := range c.Nodes[:2] {
				large := func(link netlink.Link) error { return netlink.LinkSetMTU(link, 9000) }
				if err := errors.Join(n.Do(func() error { return linkNamed("eth0", large) }), n.Outside(func() error { return linkNamed(n.Name(), large) })); err != nil {
					t.Fatal(err)
				}
				withoutOffloads(t, n)
			}
			withoutOffloads(t, c.Nodes[2])
			bridgesOnly(t, c.Nodes[2])
			// A bridge forwards the 4 bytes of a VLAN header beyond the MTU of its port.
			if err := c.Nodes[2].Outside(func() error {
				return linkNamed("node-3", func(link netlink.Link) error { return netlink.LinkSetMTU(link, 1496) })
			}); err != nil {
				t.Fatal(err)
			}
			startAgents(t, c)
			pods := map[*nodekit.Node]*nodekit.Pod{}
			for _, n := range all {
				pods[n.Node] = n.startPod(t, "pod-"+n.Name(), map[string]string{"app": "pod"})
			}
			one, two, three := c.Nodes[0], c.Nodes[1], c.Nodes[2]
			requirePodMTU(t, pods[one], 9000, 9000-mode.overhead)
			requirePodMTU(t, pods[three], 1500, 1500-mode.overhead)
			fits := 1500 - mode.overhead
			pathsOf(t, one, map[string]string{"node-2": "ok", "node-3": fmt.Sprint(fits, " bytes")})
			shows(t, one, "status", fmt.Sprintf("the path to node node-3 carries %d of %d bytes", fits, 9000-mode.overhead))
			for _, family := range families {
				header := 28
				if family.ipv6 {
					header = 48
				}
				frames, err := nodekit.Capture(two.Host(), "eth0", func() error {
					return nodekit.Ping(pods[one], pods[two].Addr(family.ipv6), 9000-mode.overhead-header)
				})
				if err != nil {
					t.Fatal(err)
				}
				whole := 0
				for _, frame := range frames {
					if len(frame) >= 9000 {
						whole++
					}
				}
				if whole < 2 {
					t.Errorf("%s: %d packets of 9000 bytes are on the wire, want the echo request and its reply", family.name, whole)
				}
				for _, from := range c.Nodes {
					for _, to := range c.Nodes {
						if from == to {
							continue
						}
						for sender, place := range map[string]nodekit.NetNS{"a pod": pods[from], "the node": from.Host()} {
							if err := nodekit.TCP(place, pods[to], pods[to].Addr(family.ipv6), 1<<20); err != nil {
								t.Errorf("%s: a stream of %s, %s to %s: %v", family.name, sender, from.Name(), to.Name(), err)
							}
						}
					}
				}
				for sender, place := range map[string]nodekit.NetNS{"a pod": pods[one], "the node": one.Host()} {
					addr := pods[three].Addr(family.ipv6)
					eventually(t, func() error { return nodekit.PingBriefly(place, addr, 4000) }) // the first packet may cause the ICMP error with the MTU
					if err := nodekit.UDP(place, pods[three], addr, 4000); err != nil {
						t.Errorf("%s: a datagram of %s: %v", family.name, sender, err)
					}
				}
			}
		})
	}
}
