package nodelist

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/waggle-net/waggle/pkg/clusternodes"
	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/lastapplied"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// maxClaims limits the addresses and ranges of one node, including refused ones: the node's agent writes the object.
const maxClaims = 1024

// maxNoted limits the ranges, current and former ones of both families, that an agent lists for its node.
const maxNoted = 16

// candidate is a node whose claims are being resolved.
type candidate struct {
	row     *nodes.Node
	created int64
	node    *k8s.Node    // nil without one
	cilium  *cilium.Node // nil without one

	retained *retained // nil without retained claims
}

// resolve assigns addresses and pod ranges to nodes. Claims of trusted writers have precedence, and among equal writers the claims of the older node.
//
// With nodesDecide (--ipam=kubernetes) the order of precedence is: the local node's own state; ranges of Nodes, which the control plane writes; the main
// addresses of Nodes, one of each family, then their other addresses, which kubelets write; ranges of CiliumNodes, former ranges and addresses of CiliumNodes,
// which agents write. A node whose Node has ranges of a family has no other ranges of that family, except former ones that this agent has seen.
//
// Otherwise (--ipam=cluster-pool) it is: the local node's own state; ranges of CiliumNodes in configured pools without the address of this node, as the
// cluster role allocates them; the main addresses of Nodes, one of each family; other ranges of CiliumNodes, and former ranges; ranges of Nodes without a
// CiliumNode, as in manifests: a kubelet may write its Node's ranges while it has none; other addresses of Nodes; addresses of CiliumNodes.
//
// Retained claims have the lowest precedence, except that a node has its retained ranges when it claims addresses in them.
func resolve(self *localnode.LocalNode, by rules, k8sNodes []*k8s.Node, ciliumNodes []*cilium.Node, former ...*retained) []*nodes.Node {
	all := candidates(self.Name, k8sNodes, ciliumNodes, former)
	c := claims{rules: by, self: self}
	for _, n := range all {
		if n.row.Name == self.Name {
			c.local(n.row, self)
		}
	}
	for _, n := range all {
		c.announce(n)
	}
	order := []func(*candidate){c.poolRanges, c.mainAddresses, c.ciliumRanges, c.previousRanges, c.specRanges, c.nodeAddresses}
	if by.nodesDecide {
		order = []func(*candidate){c.specRanges, c.mainAddresses, c.nodeAddresses, c.ciliumRanges, c.previousRanges}
	}
	for _, claim := range append(order, c.retainedRanges, c.ciliumAddresses, c.retainedAddresses) {
		for _, n := range all {
			claim(n)
		}
	}
	rows := make([]*nodes.Node, 0, len(all))
	for _, n := range all {
		if n.row.Source != nodes.Removed || len(n.row.CIDRs) > 0 {
			rows = append(rows, n.row)
		}
	}
	return rows
}

// candidates returns all nodes, the local one included, sorted by age.
func candidates(self string, k8sNodes []*k8s.Node, ciliumNodes []*cilium.Node, former []*retained) []*candidate {
	byName := map[string]*candidate{self: {row: &nodes.Node{Name: self, Source: nodes.Local}}}
	for _, n := range k8sNodes {
		c := byName[n.Name]
		if c == nil {
			c = &candidate{row: &nodes.Node{Name: n.Name, Source: nodes.Kubernetes}}
			byName[n.Name] = c
		}
		c.node, c.created, c.row.UID = n, n.Created, n.UID
	}
	for _, n := range ciliumNodes {
		c := byName[n.Name]
		if c == nil {
			c = &candidate{row: &nodes.Node{Name: n.Name, UID: n.UID}, created: n.Created}
			byName[n.Name] = c
		}
		c.row.Receives, c.row.EncryptionKey = receivesOf(n), n.EncryptionKey
		if c.cilium = n; n.Name != self {
			c.row.Source = nodes.CiliumNode
		}
	}
	for _, r := range former {
		c := byName[r.Row.Name]
		if c == nil {
			c = &candidate{row: &nodes.Node{Name: r.Row.Name, UID: r.Row.UID, Source: nodes.Removed}}
			byName[r.Row.Name] = c
		}
		if c.retained = r; c.cilium == nil {
			c.row.Receives, c.row.EncryptionKey = r.Row.Receives, r.Row.EncryptionKey
		}
	}
	all := make([]*candidate, 0, len(byName))
	for _, c := range byName {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b *candidate) int {
		return cmp.Or(cmp.Compare(a.created, b.created), cmp.Compare(a.row.UID, b.row.UID), cmp.Compare(a.row.Name, b.row.Name))
	})
	return all
}

// receivesOf returns the encapsulations that the agent of a node announces to receive.
func receivesOf(n *cilium.Node) nodes.Receives {
	r := nodes.ParseReceives(n.Annotations[ciliumv2.ReceivesAnnotation])
	_, r.Agent = n.Annotations[lastapplied.Annotation]
	return r
}

// local assigns the local node's own addresses and range.
func (c *claims) local(row *nodes.Node, self *localnode.LocalNode) {
	for _, f := range []localnode.Family{self.IPv4, self.IPv6} {
		if f.AllocRange.IsValid() {
			c.addRange(row, f.AllocRange.Masked())
		}
		for _, a := range []nodes.Address{{Type: nodes.InternalIP, Addr: f.NodeIP}, {Type: nodes.CiliumInternalIP, Addr: f.Router},
			{Type: nodes.HealthIP, Addr: f.Health}} {
			if a.Addr.IsValid() {
				c.addAddress(row, a)
			}
		}
	}
	for _, addr := range self.Addresses {
		c.address(row.Name, addr) // reserved for this node, although the row does not list it
	}
}

func (c *claims) specRanges(n *candidate) {
	if n.node == nil || !c.nodesDecide && n.cilium != nil {
		return
	}
	for _, text := range slices.Compact(append([]string{n.node.PodCIDR}, n.node.PodCIDRs...)) {
		if p, ok := clusternodes.ParseRange(text); ok && !c.nodesDecide && c.crowded(n.row.Name, p) {
			n.row.Refused = append(n.row.Refused, nodes.Refusal{Claim: text, Why: "contains addresses or ranges of several nodes"})
			continue
		}
		c.readRange(n.row, text)
	}
	n.row.FromNode = len(n.row.CIDRs)
}

// mainAddresses claims the first InternalIP, otherwise ExternalIP, of each family of a Node. So a node that lists
// addresses of other nodes as further addresses takes none of these. nodeAddresses records refused claims.
func (c *claims) mainAddresses(n *candidate) {
	if n.node == nil {
		return
	}
	listed := nodes.Node{}
	for _, a := range n.node.Addresses[:min(len(n.node.Addresses), maxClaims)] {
		if addr, err := netip.ParseAddr(a.Address); err == nil && clusternodes.Usable(addr) {
			listed.Addresses = append(listed.Addresses, nodes.Address{Type: a.Type, Addr: addr})
		}
	}
	for _, ipv6 := range []bool{false, true} {
		main := nodes.Address{Type: nodes.InternalIP, Addr: listed.Typed(nodes.InternalIP, ipv6)}
		if !main.Addr.IsValid() {
			main = nodes.Address{Type: nodes.ExternalIP, Addr: listed.Typed(nodes.ExternalIP, ipv6)}
		}
		if main.Addr.IsValid() && !slices.Contains(n.row.Addresses, main) && c.address(n.row.Name, main.Addr) == nil {
			n.row.Addresses = append(n.row.Addresses, main)
		}
	}
}

func (c *claims) nodeAddresses(n *candidate) {
	if n.node == nil {
		return
	}
	for _, a := range n.node.Addresses {
		if a.Type == nodes.InternalIP || a.Type == nodes.ExternalIP {
			c.readAddress(n.row, a.Type, a.Address)
		}
	}
}

// announce records the ranges in a CiliumNode, except the CiliumNode of the local node, which this agent writes itself.
func (c *claims) announce(n *candidate) {
	if n.cilium == nil || n.row.Source == nodes.Local {
		return
	}
	for _, text := range n.cilium.PodCIDRs[:min(len(n.cilium.PodCIDRs), maxClaims)] {
		if p, ok := clusternodes.ParseRange(text); ok {
			c.announced.Add(p, n.row.Name)
		}
	}
}

func (c *claims) poolRanges(n *candidate)   { c.ciliumRangesOf(n, true) }
func (c *claims) ciliumRanges(n *candidate) { c.ciliumRangesOf(n, false) }

// ciliumRangesOf claims the ranges of a CiliumNode in the configured pool, or the others.
func (c *claims) ciliumRangesOf(n *candidate, pool bool) {
	if n.cilium == nil || n.row.Source == nodes.Local {
		return
	}
	for _, text := range n.cilium.PodCIDRs {
		p, ok := clusternodes.ParseRange(text)
		if pool != (ok && !c.nodesDecide && c.pools.Contains(p, c.self)) {
			continue
		}
		why := ""
		switch {
		case ok && c.nodesDecide && n.decided(p) && !c.had.has(n.row.Name, p):
			why = "lies in no pod range of its Node"
		case ok && c.crowded(n.row.Name, p):
			why = "contains addresses or ranges of several nodes"
		default:
			c.readRange(n.row, text)
			continue
		}
		if belowLimit(n.row, text) {
			n.row.Refused = append(n.row.Refused, nodes.Refusal{Claim: text, Why: why})
		}
	}
}

// previousRanges claims the former ranges that the agent of a node lists in its CiliumNode. It does not record refused ones, because the list may be out of date.
func (c *claims) previousRanges(n *candidate) {
	if n.row.Source == nodes.Local {
		return
	}
	present := len(n.row.CIDRs)
	for _, p := range noted(n.cilium) {
		if c.crowded(n.row.Name, p) || c.nodesDecide && n.decided(p) && !c.had.has(n.row.Name, p) || !belowLimit(n.row, p.String()) {
			continue
		}
		if !slices.Contains(n.row.CIDRs, p) && c.prefix(n.row.Name, p) == nil {
			n.row.CIDRs = append(n.row.CIDRs, p)
		}
	}
	n.row.Former = len(n.row.CIDRs) - present
}

// noted returns the pod ranges that the agent of a node lists for its pods; none for nil.
func noted(n *cilium.Node) (list []netip.Prefix) {
	if n == nil {
		return nil
	}
	for text := range strings.SplitSeq(n.Annotations[ciliumv2.PodRangesAnnotation], ",") {
		if p, ok := clusternodes.ParseRange(text); ok && len(list) < maxNoted {
			list = append(list, p)
		}
	}
	return list
}

// decided reports whether the Node has pod ranges of the family of p, but none that contains p.
func (n *candidate) decided(p netip.Prefix) (decided bool) {
	if n.node == nil {
		return false
	}
	for _, text := range append([]string{n.node.PodCIDR}, n.node.PodCIDRs...) {
		switch own, ok := clusternodes.ParseRange(text); {
		case !ok || own.Addr().Is4() != p.Addr().Is4():
		case own.Bits() <= p.Bits() && own.Contains(p.Addr()):
			return false
		default:
			decided = true
		}
	}
	return decided
}

// ciliumAddresses claims addresses in a pod range of the node, such as its router address. Other addresses must be in its Node, if the node has one.
func (c *claims) ciliumAddresses(n *candidate) {
	if n.cilium == nil || n.row.Source == nodes.Local {
		return
	}
	for _, a := range n.cilium.Addresses {
		switch {
		case a.Type == ciliumv2.CiliumInternalIP:
			c.readOfPods(n.row, a.Type, a.IP)
		case n.node == nil && (a.Type == nodes.InternalIP || a.Type == nodes.ExternalIP):
			c.readAddress(n.row, a.Type, a.IP)
		}
	}
	c.readOfPods(n.row, nodes.HealthIP, n.cilium.HealthIPv4)
	c.readOfPods(n.row, nodes.HealthIP, n.cilium.HealthIPv6)
}

// belowLimit reports whether the node is below its limit of claims. It records the first claim above the limit as refused and ignores all later ones.
func belowLimit(row *nodes.Node, claim string) bool {
	number := len(row.Addresses) + len(row.CIDRs) + len(row.Refused)
	if number == maxClaims {
		row.Refused = append(row.Refused, nodes.Refusal{Claim: claim, Why: fmt.Sprintf("exceeds the limit of %d claims of a node", maxClaims)})
	}
	return number < maxClaims
}

// readAddress parses and claims an address of an object. An empty text is ignored.
func (c *claims) readAddress(row *nodes.Node, kind, text string) {
	if addr, ok := usable(row, text); ok {
		c.addAddress(row, nodes.Address{Type: kind, Addr: addr})
	}
}

// readOfPods is readAddress for an address that must lie in a pod range of the node.
func (c *claims) readOfPods(row *nodes.Node, kind, text string) {
	addr, ok := usable(row, text)
	if !ok {
		return
	}
	if _, found := c.ranges.Lookup(addr); !found {
		row.Refused = append(row.Refused, nodes.Refusal{Claim: text, Why: "lies in no pod range of its node"})
		return
	}
	c.addAddress(row, nodes.Address{Type: kind, Addr: addr})
}

// usable parses an address of an object, and records an unusable address as refused. It reports false for an empty text.
func usable(row *nodes.Node, text string) (netip.Addr, bool) {
	if text == "" || !belowLimit(row, text) {
		return netip.Addr{}, false
	}
	addr, err := netip.ParseAddr(text)
	if err != nil || !clusternodes.Usable(addr) {
		row.Refused = append(row.Refused, nodes.Refusal{Claim: text, Why: "is not a usable node address"})
		return netip.Addr{}, false
	}
	return addr, true
}

func (c *claims) addAddress(row *nodes.Node, a nodes.Address) {
	if slices.Contains(row.Addresses, a) {
		return
	}
	if refusal := c.address(row.Name, a.Addr); refusal != nil {
		row.Refused = append(row.Refused, *refusal)
		return
	}
	row.Addresses = append(row.Addresses, a)
}

// readRange parses and claims a pod range of an object. An empty text is ignored.
func (c *claims) readRange(row *nodes.Node, text string) {
	if text == "" || !belowLimit(row, text) {
		return
	}
	p, ok := clusternodes.ParseRange(text)
	if !ok {
		row.Refused = append(row.Refused, nodes.Refusal{Claim: text, Why: "is not a usable pod range"})
		return
	}
	c.addRange(row, p)
}

func (c *claims) addRange(row *nodes.Node, p netip.Prefix) {
	if slices.Contains(row.CIDRs, p) {
		return
	}
	if refusal := c.prefix(row.Name, p); refusal != nil {
		row.Refused = append(row.Refused, *refusal)
		return
	}
	row.CIDRs = append(row.CIDRs, p)
}
