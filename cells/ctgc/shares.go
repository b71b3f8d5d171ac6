package ctgc

import (
	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/ctmap"
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

// correctTranslations writes how many translated flows each endpoint has where programs count otherwise: they cannot know what is
// deleted here. Before is what they counted when the pass began.
func (p *pass) correctTranslations(before []bpf.NatCount) error {
	counts, err := p.nat.NatCounts()
	if err != nil {
		return err
	}
	for id, have := range counts {
		seen, gone := p.translations[uint16(id)], p.deleted[uint16(id)]
		want := bpf.NatCount{Ipv4: translations(before[id].Ipv4, have.Ipv4, seen.Ipv4, gone.Ipv4), Ipv6: translations(before[id].Ipv6, have.Ipv6, seen.Ipv6, gone.Ipv6)}
		if have == want {
			continue
		}
		if err := p.nat.SetNatCount(uint16(id), want); err != nil {
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
