package nodes

import (
	"fmt"
	"net/netip"

	"github.com/gaissmai/bart"

	tables "github.com/waggle-net/waggle/pkg/tables/nodes"
)

// claims are the addresses and ranges that are assigned to nodes so far. The first claimant of an address or range owns it.
type claims struct {
	addrs  bart.Table[string] // as prefixes of full length, to the name of the node
	ranges bart.Table[string]
}

// address assigns an address to a node. It returns a refusal when another node owns the address, or a range that contains it.
func (c *claims) address(node string, addr netip.Addr) (refused *tables.Refusal) {
	if owner, found := c.addrs.Lookup(addr); found && owner != node {
		return refuse(addr, "is an address", owner)
	}
	if owner, found := c.ranges.Lookup(addr); found && owner != node {
		return refuse(addr, "lies in a range of pods", owner)
	}
	c.addrs.Insert(netip.PrefixFrom(addr, addr.BitLen()), node)
	return nil
}

// prefix assigns a pod range to a node. It returns a refusal when another node owns a range that contains it, or an address inside it. A range that
// contains ranges of other nodes is assigned; longest-prefix match then decides for each address.
func (c *claims) prefix(node string, p netip.Prefix) (refused *tables.Refusal) {
	if owner, found := c.ranges.LookupPrefix(p); found && owner != node {
		return refuse(p, "lies in a range of pods", owner)
	}
	for _, owner := range c.addrs.Subnets(p) {
		if owner != node {
			return refuse(p, "contains an address", owner)
		}
	}
	c.ranges.Insert(p, node)
	return nil
}

func refuse(claim fmt.Stringer, why, by string) *tables.Refusal {
	return &tables.Refusal{Claim: claim.String(), Why: why, By: by}
}
