package ctgc

import (
	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/ctmap"
	"github.com/waggle-net/waggle/pkg/natmap"
)

// manyCame is the part of a table beyond which so many flows of one endpoint came during a pass that another one follows soon.
const manyCame = 32

// correctShares writes what was counted where programs count otherwise: they cannot know what is deleted here, and their
// own counts may drift. Before is what they counted when the pass began. Slot 0 has the flows of all endpoints beyond their guarantees.
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
		opened := came(int32(before[id]), int32(have))
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
	if most > capacity/manyCame {
		p.heard.hurry()
	}
	return nil
}

// came is how many flows an endpoint has opened during a pass, which may have looked already where they are. All of them are added
// to what it has seen: too few would let the endpoint open as many again beyond its share, until the next pass. Those that
// it has seen count twice until then; when that uses the share up, the program's signal brings it at once.
func came(before, now int32) uint32 { return uint32(max(now-before, 0)) }

// natCounts are the translated flows as programs count them: of each endpoint, and in all.
type natCounts struct{ flows, totals []bpf.NatCount }

func (c *collector) natCounts() (n natCounts, err error) {
	if n.flows, err = c.nat.NatCounts(); err != nil {
		return n, err
	}
	n.totals, err = c.nat.NatTotals()
	return n, err
}

// correctTranslations writes how many translated flows each endpoint and the node have, and all together beyond their guarantees, where programs count
// otherwise: they cannot know what is deleted here. Before is what they counted when the pass began.
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

// translations returns how many translated flows of one family an endpoint has after a pass: what programs count now, less what the
// pass has deleted. The pass has seen all flows but those that came meanwhile, so there are at least as many as it has seen, and at
// most those more that came. Where none came, it is what the pass has seen, whatever programs count.
func translations(before, now, seen, deleted int32) int32 {
	return min(max(now-deleted, seen), seen+int32(came(before, now)))
}
