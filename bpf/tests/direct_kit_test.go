package tests

import (
	"fmt"
	"os"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/mac"
	"github.com/waggle-net/waggle/pkg/testnet"
)

// directMode is a mode of reaching other nodes by routes.
type directMode struct {
	constants map[string]uint32
	since     bpf.Protocol // from this protocol on programs forward: PROTOCOL_DIRECT or PROTOCOL_HYBRID of protocol.h
}

// alone has no tunnel; beside has one for other nodes.
var (
	alone  = directMode{nil, 3}
	beside = directMode{map[string]uint32{bpf.VariableTunnelPort: tunnelPort, bpf.VariableEncapModes: encapAll, bpf.VariableDirectAccepted: 1, bpf.VariableDirectBesideTunnel: 1}, 4}
)

// newDirectNode is a real node with routes to the pod of another node. With mode [NodeDirect] programs forward the packets between its pods and that pod,
// otherwise the stack does. The other node runs no programs.
func newDirectNode(t *testing.T, direct directMode, mode uint8) *surroundings {
	t.Helper()
	s := newSurroundings(t, ethernetOnly, direct.constants)
	s.direct = direct
	s.update(bpf.MapNodes, uint32(otherID), bpf.Node{Mode: mode})
	for _, f := range families {
		s.update(bpf.MapIpcache, bpf.NewAddrKey(distantPod[f]), bpf.IpcacheEntry{Identity: identityDistant, Node: otherID})
		s.update(bpf.MapIpcache, bpf.NewAddrKey(thirdPod[f]), bpf.IpcacheEntry{Identity: identityDistant, Node: thirdID})
		s.update(bpf.MapIpcache, bpf.NewAddrKey(otherNode[f]), bpf.IpcacheEntry{Identity: 6, Node: otherID})
	}
	s.update(bpf.MapDatapath, uint32(0), bpf.DatapathState{Protocol: bpf.Protocol(bpf.ProtocolHighest)})
	s.distant.Do(func() { // its pod uses its own address
		link, err := netlink.LinkByName("eth0")
		check(t, err)
		for _, f := range families {
			check(t, netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: hostNet(podA.addr(f)), Gw: nodeIn[f].AsSlice(), Src: distantPod[f].AsSlice()}))
		}
	})
	return s
}

// forwarded returns the number of packets of a family that the stack of the node has forwarded.
func (s *surroundings) forwarded(t *testing.T, family int) (packets uint64) {
	t.Helper()
	s.host.Do(func() {
		var err error
		packets, err = testnet.Forwarded(family == 6)
		check(t, err)
	})
	return packets
}

// onDirect runs a test for each family in the namespace of a node of [newDirectNode], whose device towards the other node has this address.
func onDirect(t *testing.T, test func(t *testing.T, s *surroundings, family int, device mac.Addr)) {
	t.Helper()
	for name, direct := range map[string]directMode{"without a tunnel": alone, "beside a tunnel": beside} {
		for _, family := range families {
			t.Run(fmt.Sprintf("IPv%d %s", family, name), func(t *testing.T) {
				t.Parallel()
				s := newDirectNode(t, direct, bpf.NodeDirect)
				s.host.Enter()
				link, err := netlink.LinkByName("backbone")
				if err != nil {
					t.Fatal(err)
				}
				device, err := mac.FromHardwareAddr(link.Attrs().HardwareAddr)
				if err != nil {
					t.Fatal(err)
				}
				test(t, s, family, device)
			})
		}
	}
}

// in returns the node for a sub-test, whose goroutine enters the namespace too.
func (s *surroundings) in(t *testing.T) *node {
	t.Helper()
	s.host.Enter()
	n := *s.node
	n.t = t
	n.refill(podA.id)
	return &n
}

// withoutFragments sets the DF bit of an IPv4 packet.
func withoutFragments(frame []byte) []byte {
	if frame[14]>>4 == 4 {
		frame[20] = 0x40
		sumIPv4(frame, 14)
	}
	return frame
}

// writeSetting changes a setting of the network namespace.
func writeSetting(name, value string) error {
	return os.WriteFile("/proc/sys/net/"+name, []byte(value), 0)
}
