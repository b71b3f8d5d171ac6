package nodes

import (
	"net/netip"

	"github.com/gaissmai/bart"

	tables "github.com/waggle-net/waggle/pkg/tables/nodes"
)

// claims are the addresses and ranges that nodes have so far. Who comes first has them.
type claims struct {
	addrs  bart.Table[string] // as prefixes of full length, to the name of the node
	ranges bart.Table[string]
}

// address gives a node an address, unless another node has it or the range that it lies in.
func (c *claims) address(node string, addr netip.Addr) (refused *tables.Refusal) {
	if owner, found := c.addrs.Lookup(addr); found {
		return refuse(owner != node, addr, "is an address", owner)
	}
	if owner, found := c.ranges.Lookup(addr); found && owner != node {
		return refuse(true, addr, "lies in a range of pods", owner)
	}
	c.addrs.Insert(netip.PrefixFrom(addr, addr.BitLen()), node)
	return nil
}

// prefix gives a node a range of pods, unless another node has a range around it, or an address in it. Where a wider range meets ranges in
// it, the narrower ones count.
func (c *claims) prefix(node string, p netip.Prefix) (refused *tables.Refusal) {
	if owner, found := c.ranges.LookupPrefix(p); found && owner != node {
		return refuse(true, p, "lies in a range of pods", owner)
	}
	for _, owner := range c.addrs.Subnets(p) {
		if owner != node {
			return refuse(true, p, "contains an address", owner)
		}
	}
	c.ranges.Insert(p, node)
	return nil
}

func refuse(is bool, claim interface{ String() string }, why, by string) *tables.Refusal {
	if !is {
		return nil
	}
	return &tables.Refusal{Claim: claim.String(), Why: why, By: by}
}
