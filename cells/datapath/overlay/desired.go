package overlay

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"net/netip"
	"slices"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/mac"
	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/sysctls"
)

// outerSource returns the source address of a family for tunnel packets: the address at which the other nodes expect this node, taken from its
// node object own, which is nil while there is none. If this node does not have that address, it returns the primary address and an error.
func outerSource(self *localnode.LocalNode, own *nodes.Node, ipv6 bool) (netip.Addr, error) {
	primary := self.IPv4.NodeIP
	if ipv6 {
		primary = self.IPv6.NodeIP
	}
	if own == nil {
		return primary, nil
	}
	expected := own.Address(ipv6)
	if !expected.IsValid() || slices.Contains(self.Addresses, expected) {
		return cmp.Or(expected, primary), nil
	}
	if !primary.IsValid() {
		return netip.Addr{}, nil
	}
	return primary, fmt.Errorf("other nodes expect the tunnel of this node at %s, the first InternalIP of its Node object, which no device of this node has: "+
		"they drop packets from %s; give kubelet --node-ip=%s", expected, primary, primary)
}

// macOf returns the MAC address of a node's tunnel device: locally administered, and the same after the device is created again.
func macOf(node string) (addr mac.Addr) {
	sum := sha256.Sum256([]byte("waggle tunnel of node " + node))
	copy(addr[:], sum[:])
	addr[0] = addr[0]&^1 | 2
	return addr
}

// desiredSysctls returns the settings that let packets from the tunnel pass the stack: the reverse path to their sources leads to waggle_host. With pair, they
// also prevent the devices of the pair from sending packets of their own.
func desiredSysctls(a agentconfig.Agent, pair bool) []sysctls.Setting {
	const device = podlink.OverlayDevice
	all := []sysctls.Setting{
		{Name: "net/ipv4/conf/" + device + "/forwarding", Value: "1"},
		{Name: "net/ipv4/conf/" + device + "/rp_filter", Value: "0"},
		{Name: "net/ipv4/conf/" + device + "/send_redirects", Value: "0"},
	}
	if a.EnableIPv6 {
		all = append(all,
			sysctls.Setting{Name: "net/ipv6/conf/" + device + "/disable_ipv6", Value: "0"},
			sysctls.Setting{Name: "net/ipv6/conf/" + device + "/forwarding", Value: "1"},
			sysctls.Setting{Name: "net/ipv6/conf/" + device + "/accept_dad", Value: "0"}, // no neighbours
			sysctls.Setting{Name: "net/ipv6/conf/" + device + "/accept_ra", Value: "0"},
		)
	}
	if pair && a.EnableIPv6 {
		for _, end := range []string{podlink.ChecksumDevice, podlink.ChecksumPeer} {
			all = append(all, sysctls.Setting{Name: "net/ipv6/conf/" + end + "/disable_ipv6", Value: "1"})
		}
	}
	return all
}
