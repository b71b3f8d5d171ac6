package ctgc

import (
	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/ctmap"
	"github.com/waggle-net/waggle/pkg/datapath/natmap"
)

// burstDivisor limits the flows that one endpoint creates during a pass: more than 1/32 of a table request another pass at once.
const burstDivisor = 32

// correctShares writes the counted numbers of flows where the counts of programs differ: programs do not know the deletions of this cell, and their counts may
// drift. The argument before holds their counts at the beginning of the pass. Slot 0 has the flows of all endpoints beyond their guarantees.
func (p *pass) correctShares(before []uint32) error {
	counts, err := p.kernel.Counts()
	if err != nil {
		return err
	}
	capacity := p.found[bpf.MapCtEst4].capacity
	guarantee := ctmap.Guarantee(capacity)
	most, beyond := uint32(0), uint32(0)
	for id, have := range counts {
		if id == 0 {
			continue
		}
		opened := createdFlows(int32(before[id]), int32(have))
		most = max(most, opened)
		want := p.shares[uint16(id)] + opened
		beyond += want - min(want, guarantee)
		if have == want {
			continue
		}
		if err := p.kernel.SetCount(uint16(id), want); err != nil {
			return err
		}
	}
	if counts[0] != beyond {
		if err := p.kernel.SetCount(0, beyond); err != nil {
			return err
		}
	}
	if most > capacity/burstDivisor {
		p.signals.hurry()
	}
	return nil
}

// createdFlows returns the number of flows that an endpoint has created during a pass. The pass may have read their part of the map before they were created, so
// the caller adds all of them to the flows that the pass has counted: a lower count would let the endpoint exceed its quota until the next pass. New flows that
// the pass has counted count twice until then; if that uses up the quota, the program's signal requests a pass at once.
func createdFlows(before, now int32) uint32 { return uint32(max(now-before, 0)) }

// natCounts are the numbers of translated flows as counted by the programs: of each endpoint, and totals.
type natCounts struct{ flows, totals []bpf.NatCount }

func (a *access) natCounts() (n natCounts, err error) {
	if n.flows, err = a.nat.NatCounts(); err != nil {
		return n, err
	}
	n.totals, err = a.nat.NatTotals()
	return n, err
}

// correctTranslations writes the numbers of translated flows of each endpoint and of the node, and of all flows beyond guarantees, where the counts of programs
// differ: programs do not know the deletions of this cell. The argument before holds their counts at the beginning of the pass.
func (p *pass) correctTranslations(before natCounts) error {
	counts, err := p.natCounts()
	if err != nil {
		return err
	}
	guarantee4, guarantee6 := int32(natmap.Guarantee(p.found[bpf.MapNat4].capacity)), int32(natmap.Guarantee(p.found[bpf.MapNat6].capacity))
	var beyond bpf.NatCount
	correct := func(before, have, seen, gone bpf.NatCount) bpf.NatCount {
		want := bpf.NatCount{Ipv4: translations(before.Ipv4, have.Ipv4, seen.Ipv4, gone.Ipv4), Ipv6: translations(before.Ipv6, have.Ipv6, seen.Ipv6, gone.Ipv6)}
		beyond.Ipv4 += max(want.Ipv4-guarantee4, 0)
		beyond.Ipv6 += max(want.Ipv6-guarantee6, 0)
		return want
	}
	for id, have := range counts.flows {
		want := correct(before.flows[id], have, p.translations.endpoints[uint16(id)], p.deleted.endpoints[uint16(id)])
		if have == want {
			continue
		}
		if err := p.nat.SetNatCount(uint16(id), want); err != nil {
			return err
		}
	}
	node := correct(before.totals[bpf.NatOfNode], counts.totals[bpf.NatOfNode], p.translations.node, p.deleted.node)
	for slot, want := range map[uint32]bpf.NatCount{bpf.NatOfNode: node, bpf.NatBeyond: beyond} {
		if counts.totals[slot] == want {
			continue
		}
		if err := p.nat.SetNatTotal(slot, want); err != nil {
			return err
		}
	}
	return nil
}

// translations returns the number of translated flows of one family of an endpoint after a pass: the current count of the programs, less the flows that the
// pass has deleted. The pass has seen all flows except new ones, so the result is at least the number that it has seen, and at most that number plus the new
// flows. Without new flows it is the number that the pass has seen, even if the programs have a wrong count.
func translations(before, now, seen, deleted int32) int32 {
	return min(max(now-deleted, seen), seen+int32(createdFlows(before, now)))
}
