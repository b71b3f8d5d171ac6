package nodes

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/waggle-net/waggle/pkg/ciliumv2"
	"github.com/waggle-net/waggle/pkg/clusternodes"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	tables "github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/wrote"
)

// maxClaims bounds the addresses and ranges of one node, refused ones included: its agent writes the object.
const maxClaims = 1024

// candidate is a node whose claims are being resolved.
type candidate struct {
	row     *tables.Node
	created int64
	node    *k8s.Node    // nil without one
	cilium  *cilium.Node // nil without one
}

// resolve assigns addresses and pod ranges to nodes. The order of precedence is: the local node's own state; ranges of Nodes, which only the control plane
// writes; addresses of Nodes, which kubelets write; addresses, then ranges of CiliumNodes, which agents write. Among equals the older node wins.
func resolve(self *localnode.LocalNode, nodes []*k8s.Node, ciliumNodes []*cilium.Node) []*tables.Node {
	all := candidates(self.Name, nodes, ciliumNodes)
	var c claims
	for _, n := range all {
		if n.row.Name == self.Name {
			c.local(n.row, self)
		}
	}
	for _, claim := range []func(*candidate){c.specRanges, c.nodeAddresses, c.ciliumAddresses, c.ciliumRanges} {
		for _, n := range all {
			claim(n)
		}
	}
	rows := make([]*tables.Node, 0, len(all))
	for _, n := range all {
		rows = append(rows, n.row)
	}
	return rows
}

// candidates returns all nodes, the local one included, sorted by age.
func candidates(self string, nodes []*k8s.Node, ciliumNodes []*cilium.Node) []*candidate {
	byName := map[string]*candidate{self: {row: &tables.Node{Name: self, Source: tables.Local}}}
	for _, n := range nodes {
		c := byName[n.Name]
		if c == nil {
			c = &candidate{row: &tables.Node{Name: n.Name, Source: tables.Kubernetes}}
			byName[n.Name] = c
		}
		c.node, c.created, c.row.UID = n, n.Created, n.UID
	}
	for _, n := range ciliumNodes {
		c := byName[n.Name]
		if c == nil {
			c = &candidate{row: &tables.Node{Name: n.Name, UID: n.UID}, created: n.Created}
			byName[n.Name] = c
		}
		c.row.Receives = receivesOf(n)
		if c.cilium = n; n.Name != self {
			c.row.Source = tables.CiliumNode
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

// receivesOf returns what the agent of a node takes from other nodes.
func receivesOf(n *cilium.Node) tables.Receives {
	r := tables.ParseReceives(n.Annotations[ciliumv2.ReceivesAnnotation])
	_, r.Agent = n.Annotations[wrote.Annotation]
	return r
}

// local assigns the local node's own addresses and range.
func (c *claims) local(row *tables.Node, self *localnode.LocalNode) {
	for _, f := range []localnode.Family{self.IPv4, self.IPv6} {
		if f.AllocRange.IsValid() {
			c.addRange(row, f.AllocRange.Masked())
		}
		for _, a := range []tables.Address{{Type: tables.InternalIP, Addr: f.NodeIP}, {Type: tables.CiliumInternalIP, Addr: f.Router},
			{Type: tables.HealthIP, Addr: f.Health}} {
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
	if n.node == nil {
		return
	}
	for _, text := range append([]string{n.node.PodCIDR}, n.node.PodCIDRs...) {
		c.readRange(n.row, text)
	}
	n.row.FromNode = len(n.row.CIDRs)
}

func (c *claims) nodeAddresses(n *candidate) {
	if n.node == nil {
		return
	}
	for _, a := range n.node.Addresses {
		if a.Type == tables.InternalIP || a.Type == tables.ExternalIP {
			c.readAddress(n.row, a.Type, a.Address)
		}
	}
}

// ciliumAddresses ignores the CiliumNode of the local node, which this agent writes itself.
func (c *claims) ciliumAddresses(n *candidate) {
	if n.cilium == nil || n.row.Source == tables.Local {
		return
	}
	for _, a := range n.cilium.Addresses {
		if a.Type == tables.InternalIP || a.Type == tables.ExternalIP || a.Type == ciliumv2.CiliumInternalIP {
			c.readAddress(n.row, a.Type, a.IP)
		}
	}
	c.readAddress(n.row, tables.HealthIP, n.cilium.HealthIPv4)
	c.readAddress(n.row, tables.HealthIP, n.cilium.HealthIPv6)
}

func (c *claims) ciliumRanges(n *candidate) {
	if n.cilium == nil || n.row.Source == tables.Local {
		return
	}
	for _, text := range n.cilium.PodCIDRs {
		c.readRange(n.row, text)
	}
}

// room reports whether the node is below its limit of claims. It records the first claim above the limit as refused and ignores all later ones.
func room(row *tables.Node, claim string) bool {
	number := len(row.Addresses) + len(row.CIDRs) + len(row.Refused)
	if number == maxClaims {
		row.Refused = append(row.Refused, tables.Refusal{Claim: claim, Why: fmt.Sprintf("exceeds the limit of %d claims of a node", maxClaims)})
	}
	return number < maxClaims
}

// readAddress parses and claims an address of an object. An empty text is ignored.
func (c *claims) readAddress(row *tables.Node, kind, text string) {
	if text == "" || !room(row, text) {
		return
	}
	addr, err := netip.ParseAddr(text)
	if err != nil || !clusternodes.Usable(addr) {
		row.Refused = append(row.Refused, tables.Refusal{Claim: text, Why: "is not a usable node address"})
		return
	}
	c.addAddress(row, tables.Address{Type: kind, Addr: addr})
}

func (c *claims) addAddress(row *tables.Node, a tables.Address) {
	if slices.Contains(row.Addresses, a) {
		return
	}
	if refused := c.address(row.Name, a.Addr); refused != nil {
		row.Refused = append(row.Refused, *refused)
		return
	}
	row.Addresses = append(row.Addresses, a)
}

// readRange parses and claims a pod range of an object. An empty text is ignored.
func (c *claims) readRange(row *tables.Node, text string) {
	if text == "" || !room(row, text) {
		return
	}
	p, ok := clusternodes.ParseRange(text)
	if !ok {
		row.Refused = append(row.Refused, tables.Refusal{Claim: text, Why: "is not a usable pod range"})
		return
	}
	c.addRange(row, p)
}

func (c *claims) addRange(row *tables.Node, p netip.Prefix) {
	if slices.Contains(row.CIDRs, p) {
		return
	}
	if refused := c.prefix(row.Name, p); refused != nil {
		row.Refused = append(row.Refused, *refused)
		return
	}
	row.CIDRs = append(row.CIDRs, p)
}
