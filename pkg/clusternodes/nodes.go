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

// ReadOne reads one node; the zero Node when there is none of that name. What cannot be read is left out; those who write it say so.
func ReadOne(txn statedb.ReadTxn, nodes statedb.Table[*k8s.Node], ciliumNodes statedb.Table[*cilium.Node], name string) Node {
	node, _, found := nodes.Get(txn, k8s.NodeByName(name))
	ciliumNode, _, ciliumFound := ciliumNodes.Get(txn, cilium.NodeByName(name))
	if !found && !ciliumFound {
		return Node{}
	}
	return newNode(name, node, ciliumNode)
}

// newNode reads the objects of one node, either of which may be nil.
func newNode(name string, node *k8s.Node, ciliumNode *cilium.Node) Node {
	n := Node{Name: name}
	if node != nil {
		for _, a := range node.Addresses {
			n.add(a.Type, a.Address)
		}
		for _, text := range append(slices.Clip(node.PodCIDRs), node.PodCIDR) {
			n.addCIDR(text, true)
		}
	}
	if ciliumNode == nil {
		return n
	}
	for _, a := range ciliumNode.Addresses {
		n.add(a.Type, a.IP)
	}
	for _, text := range ciliumNode.PodCIDRs {
		n.addCIDR(text, false)
	}
	for _, text := range []string{ciliumNode.HealthIPv4, ciliumNode.HealthIPv6} {
		if addr, ok := usable(text); ok {
			n.Health = append(n.Health, addr)
		}
	}
	return n
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
func (n Node) Equal(o Node) bool {
	return n.Name == o.Name && slices.Equal(n.Addrs, o.Addrs) && slices.Equal(n.Routers, o.Routers) && slices.Equal(n.Health, o.Health) &&
		slices.Equal(n.CIDRs, o.CIDRs)
}
