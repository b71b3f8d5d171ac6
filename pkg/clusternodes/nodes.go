package clusternodes

import (
	"net/netip"
	"slices"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/ciliumv2"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// Node is what one node says of itself, and what others gave it.
type Node struct {
	Name    string
	Addrs   []netip.Addr // of the node itself: InternalIP and ExternalIP
	Routers []netip.Addr // of its device for pods: CiliumInternalIP
	Health  []netip.Addr // by which its health is asked
	CIDRs   []CIDR       // of its pods
}

// CIDR is a range of pods.
type CIDR struct {
	Prefix netip.Prefix // masked
	// Spec says that the range stands in the Node, which only Kubernetes writes; otherwise in the CiliumNode, which the
	// node's agent may write too.
	Spec bool
}

// Ranges shorter than these would be most of the world, which is no range of pods.
const (
	shortestIPv4 = 8
	shortestIPv6 = 16
)

// All are the nodes of the cluster, sorted by name.
type All []Node

// Read collects all nodes. What cannot be read is left out; those who write it say so.
func Read(txn statedb.ReadTxn, nodes statedb.Table[*k8s.Node], ciliumNodes statedb.Table[*cilium.Node]) All {
	byName := map[string]*Node{}
	of := func(name string) *Node {
		if byName[name] == nil {
			byName[name] = &Node{Name: name}
		}
		return byName[name]
	}
	for row := range nodes.All(txn) {
		n := of(row.Name)
		for _, a := range row.Addresses {
			n.add(a.Type, a.Address)
		}
		for _, text := range append(slices.Clip(row.PodCIDRs), row.PodCIDR) {
			n.addCIDR(text, true)
		}
	}
	for row := range ciliumNodes.All(txn) {
		n := of(row.Name)
		for _, a := range row.Addresses {
			n.add(a.Type, a.IP)
		}
		for _, text := range row.PodCIDRs {
			n.addCIDR(text, false)
		}
		for _, text := range []string{row.HealthIPv4, row.HealthIPv6} {
			if addr, ok := usable(text); ok {
				n.Health = append(n.Health, addr)
			}
		}
	}
	all := make(All, 0, len(byName))
	for _, n := range byName {
		all = append(all, *n)
	}
	slices.SortFunc(all, func(a, b Node) int {
		if a.Name < b.Name {
			return -1
		}
		return 1 // names are keys: no two are equal
	})
	return all
}

func (n *Node) add(kind, text string) {
	addr, ok := usable(text)
	if !ok {
		return
	}
	into := &n.Addrs
	switch kind {
	case "InternalIP", "ExternalIP":
	case ciliumv2.CiliumInternalIP:
		into = &n.Routers
	default:
		return
	}
	if !slices.Contains(*into, addr) {
		*into = append(*into, addr)
	}
}

func (n *Node) addCIDR(text string, spec bool) {
	prefix, ok := ParseRange(text)
	if !ok {
		return
	}
	c := CIDR{prefix, spec}
	if !slices.Contains(n.CIDRs, c) {
		n.CIDRs = append(n.CIDRs, c)
	}
}

// ParseRange reads a range of pods, masked. It reports false for text that is no prefix, for a prefix that is most of
// the world, and for addresses that no pod can have.
func ParseRange(text string) (netip.Prefix, bool) {
	prefix, err := netip.ParsePrefix(text)
	if err != nil || prefix.Addr().Is4In6() || prefix.Bits() < shortestIPv6 && prefix.Addr().Is6() || prefix.Bits() < shortestIPv4 {
		return netip.Prefix{}, false
	}
	prefix = prefix.Masked()
	return prefix, Usable(prefix.Addr())
}

func usable(text string) (netip.Addr, bool) {
	addr, err := netip.ParseAddr(text)
	return addr, err == nil && Usable(addr)
}

// Usable tells whether a pod or a node may have an address at all, as far as others are concerned.
func Usable(addr netip.Addr) bool {
	return addr.IsGlobalUnicast() && !addr.Is4In6() && addr.Zone() == ""
}

// Equal compares everything.
func (a All) Equal(b All) bool {
	return slices.EqualFunc(a, b, func(x, y Node) bool {
		return x.Name == y.Name && slices.Equal(x.Addrs, y.Addrs) && slices.Equal(x.Routers, y.Routers) &&
			slices.Equal(x.Health, y.Health) && slices.Equal(x.CIDRs, y.CIDRs)
	})
}
