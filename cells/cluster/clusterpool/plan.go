package clusterpool

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"github.com/waggle-net/waggle/pkg/cidrpool"
	"github.com/waggle-net/waggle/pkg/clusternodes"
	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/tables/podcidrpool"
)

// maxNoted limits the CIDRs that a node may list and still get another one. Agents of other nodes read at most this many.
const maxNoted = 16

// maxAddresses limits the addresses of one node that exclude subnets from the pool: its agent writes them, and each may exclude another subnet. A node has one or
// two of each type and family.
const maxAddresses = 16

// assignment is the desired CIDRs of a node: its current CIDRs, followed by the new ones.
type assignment struct {
	node  *ciliumv2.CiliumNode
	cidrs []string
	rows  []podcidrpool.CIDR // of the new ones
}

// holding is a CIDR of a node.
type holding struct {
	node   int
	prefix netip.Prefix
}

// plan computes the rows and the assignments from all CiliumNodes. It is a pure function.
func plan(families []family, nodes []ciliumv2.CiliumNode) (rows []podcidrpool.CIDR, give []assignment) {
	slices.SortFunc(nodes, func(a, b ciliumv2.CiliumNode) int { return strings.Compare(a.Name, b.Name) })
	holdings, broken := read(nodes)
	for i, reason := range broken {
		rows = append(rows, podcidrpool.CIDR{Node: nodes[i].Name, Family: "unknown",
			CIDR: strings.Join(nodes[i].Spec.IPAM.PodCIDRs, ","), State: podcidrpool.Invalid, Reason: reason})
	}
	assignments := map[int]*assignment{}
	for _, f := range families {
		rows = append(rows, f.plan(nodes, holdings, broken, assignments)...)
	}
	for i := range nodes {
		if a := assignments[i]; a != nil {
			give = append(give, *a)
		}
	}
	return rows, give
}

// read parses the CIDRs of nodes. A node with an unreadable CIDR is broken, because the family of that CIDR is
// unknown.
func read(nodes []ciliumv2.CiliumNode) (all []holding, broken map[int]string) {
	broken = map[int]string{}
	for i := range nodes {
		for _, text := range nodes[i].Spec.IPAM.PodCIDRs {
			prefix, err := netip.ParsePrefix(text)
			if err != nil || prefix.Addr().Is4In6() {
				broken[i] = fmt.Sprintf("%q in spec.ipam.podCIDRs is not a CIDR: correct or remove it", text)
				continue
			}
			all = append(all, holding{i, prefix.Masked()})
		}
	}
	return all, broken
}

// addresses returns the addresses by which nodes reach each other, at most maxAddresses of each node. A CIDR that contains one of them would disconnect its node.
func addresses(nodes []ciliumv2.CiliumNode) (all []netip.Prefix) {
	for i := range nodes {
		n := 0
		for _, a := range nodes[i].Spec.Addresses {
			addr, err := netip.ParseAddr(a.IP)
			if err == nil && a.Type != ciliumv2.CiliumInternalIP && n < maxAddresses {
				all = append(all, netip.PrefixFrom(addr.Unmap(), addr.Unmap().BitLen()))
				n++
			}
		}
	}
	return all
}

// noted returns the CIDRs that an agent lists for the pods of its node. They include former CIDRs, which no other node may get yet.
func noted(node ciliumv2.CiliumNode) (all []netip.Prefix) {
	for text := range strings.SplitSeq(node.Annotations[ciliumv2.PodRangesAnnotation], ",") {
		if p, ok := clusternodes.ParseRange(text); ok {
			all = append(all, p)
		}
	}
	return all
}

// excluded returns the noted CIDRs of the family. Those of one node exclude at most maxNoted subnets, or a sixteenth of the pool if that is more: its agent writes
// them, and a short prefix would otherwise leave nothing for other nodes.
func (f family) excluded(nodes []ciliumv2.CiliumNode) (all []netip.Prefix) {
	most := max(maxNoted, f.pool.Total()/16)
	for i := range nodes {
		left := most
		for _, p := range noted(nodes[i]) {
			subnets := uint64(1) << min(max(f.pool.Size()-p.Bits(), 0), 63)
			if p.Addr().BitLen() == f.pool.CIDRs()[0].Addr().BitLen() && subnets <= left {
				left -= subnets
				all = append(all, p)
			}
		}
	}
	return all
}

// plan checks the CIDRs of nodes of one family, and adds the new assignments to lacking.
func (f family) plan(nodes []ciliumv2.CiliumNode, all []holding, broken map[int]string, assignments map[int]*assignment) []podcidrpool.CIDR {
	var own []holding
	var taken []netip.Prefix
	for _, h := range all {
		if h.prefix.Addr().BitLen() == f.pool.CIDRs()[0].Addr().BitLen() {
			own, taken = append(own, h), append(taken, h.prefix)
		}
	}
	rows := f.evaluate(nodes, own, cidrpool.Overlaps(taken))
	next, stop := iter.Pull(f.pool.Free(slices.Concat(taken, addresses(nodes), f.excluded(nodes))))
	defer stop()
	at := 0
	for i := range nodes {
		has := at
		for at < len(own) && own[at].node == i {
			at++
		}
		if _, unread := broken[i]; unread || at > has {
			continue
		}
		row := podcidrpool.CIDR{Node: nodes[i].Name, Family: f.name}
		if n := len(noted(nodes[i])); n >= maxNoted { // otherwise one agent could exhaust the pool by listing its CIDR and then removing it
			row.State, row.Reason = podcidrpool.Invalid, fmt.Sprintf("%d CIDRs in %s, of at most %d: delete the pods with addresses of previous ones", n, ciliumv2.PodRangesAnnotation, maxNoted)
			rows = append(rows, row)
			continue
		}
		subnet, ok := next()
		if !ok {
			row.State, row.Reason = podcidrpool.Exhausted, f.exhausted()
			rows = append(rows, row)
			continue
		}
		row.CIDR, row.State = subnet.String(), podcidrpool.Pending
		a := assignments[i]
		if a == nil {
			a = &assignment{node: &nodes[i], cidrs: slices.Clone(nodes[i].Spec.IPAM.PodCIDRs)}
			assignments[i] = a
		}
		a.cidrs, a.rows = append(a.cidrs, row.CIDR), append(a.rows, row)
	}
	return rows
}

// evaluate returns one row for each node that has CIDRs.
func (f family) evaluate(nodes []ciliumv2.CiliumNode, own []holding, overlaps map[int]int) (rows []podcidrpool.CIDR) {
	for i, h := range own {
		row := podcidrpool.CIDR{Node: nodes[h.node].Name, Family: f.name, CIDR: h.prefix.String(), State: podcidrpool.Given}
		with, overlapping := overlaps[i]
		switch {
		case overlapping:
			row.State = podcidrpool.Conflict
			row.Reason = fmt.Sprintf("%s overlaps %s of node %s: drain one of the nodes and delete its CiliumNode",
				h.prefix, own[with].prefix, nodes[own[with].node].Name)
		case !f.pool.Contains(h.prefix):
			row.State, row.Reason = podcidrpool.Outside, fmt.Sprintf("%s is not in %s; it is kept", h.prefix, f.flag)
		}
		if n := len(rows); n > 0 && rows[n-1].Node == row.Node {
			rows[n-1] = joined(rows[n-1], row)
			continue
		}
		rows = append(rows, row)
	}
	return rows
}

// joined merges the rows of two CIDRs of a node; a fault of either is kept.
func joined(a, b podcidrpool.CIDR) podcidrpool.CIDR {
	a.CIDR += "," + b.CIDR
	if a.State == podcidrpool.Given {
		a.State, a.Reason = b.State, b.Reason
	}
	return a
}

func (f family) exhausted() string {
	return fmt.Sprintf("all %d subnets of length %d in %s (%s) are taken: add a CIDR to the flag, or remove nodes",
		f.pool.Total(), f.pool.Size(), strings.Trim(fmt.Sprint(f.pool.CIDRs()), "[]"), f.flag)
}
