package nodelist

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"

	"github.com/waggle-net/waggle/pkg/clusternodes"
	"github.com/waggle-net/waggle/pkg/podpools"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// claims are the addresses and ranges that are assigned to nodes so far. The first claimant of an address or range owns it.
type claims struct {
	addrs     bart.Table[string] // full-length prefix to the name of the node
	ranges    bart.Table[string]
	announced clusternodes.Names // nodes by the ranges in their CiliumNodes, whether assigned or not
	rules
	self *localnode.LocalNode
}

// rules determine the precedence of claims.
type rules struct {
	nodesDecide bool           // a node whose Node has ranges of a family has no other ranges of that family
	had         *trustedRanges // with nodesDecide, the trusted former ranges
	pools       podpools.Pools // without nodesDecide, CIDRs in which only the cluster role allocates ranges
}

// address assigns an address to a node. It returns a refusal when another node owns the address or a range that contains it.
func (c *claims) address(node string, addr netip.Addr) (refusal *nodes.Refusal) {
	if owner, found := c.addrs.Lookup(addr); found && owner != node {
		return newRefusal(addr, "is an address", owner)
	}
	if owner, found := c.ranges.Lookup(addr); found && owner != node {
		return newRefusal(addr, "lies in a range of pods", owner)
	}
	c.addrs.Insert(netip.PrefixFrom(addr, addr.BitLen()), node)
	return nil
}

// prefix assigns a pod range to a node. It returns a refusal when another node owns a range that contains it. A range may contain ranges and addresses of other
// nodes: those nodes keep them, because lookups use the longest prefix.
func (c *claims) prefix(node string, p netip.Prefix) (refusal *nodes.Refusal) {
	if owner, found := c.ranges.LookupPrefix(p); found && owner != node {
		return newRefusal(p, "lies in a range of pods", owner)
	}
	c.ranges.Insert(p, node)
	return nil
}

// crowded reports whether a range contains addresses or smaller ranges of two or more other nodes. One other node is not enough: otherwise a node could cause
// the refusal of another node's range by claiming parts of it. If several nodes claim the same range, the first one owns it.
func (c *claims) crowded(node string, p netip.Prefix) bool {
	one := ""
	another := func(name string) bool {
		if name == node || name == one {
			return false
		}
		second := one != ""
		one = name
		return second
	}
	for _, owner := range c.addrs.Subnets(p) {
		if another(owner) {
			return true
		}
	}
	for smaller, owner := range c.ranges.Subnets(p) {
		if smaller != p && another(owner) {
			return true
		}
	}
	for smaller, names := range c.announced.Within(p) {
		if smaller != p && slices.ContainsFunc(names, another) {
			return true
		}
	}
	return false
}

func newRefusal(claim fmt.Stringer, why, by string) *nodes.Refusal {
	return &nodes.Refusal{Claim: claim.String(), Why: why, By: by}
}
