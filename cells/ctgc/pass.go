package ctgc

import (
	"context"
	"time"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/ctmap"
	"github.com/waggle-net/waggle/pkg/heartbeat"
)

// found is what a pass found in one map.
type found struct {
	entries, expired, orphaned uint64
	capacity                   uint32
	took                       time.Duration
}

// pass looks at all maps once.
type pass struct {
	*collector
	pause  time.Duration // between slices; 0 once somebody waits
	known  *locals       // when the pass began; nil when not all endpoints were known then
	locals *locals       // of now, likewise
	shares map[uint16]uint32
	found  map[string]found
}

// run collects, corrects the shares, and tells what was found. A pass that knew no endpoints left their flows.
func (p *pass) run(ctx context.Context) error {
	p.shares, p.found = make(map[uint16]uint32), make(map[string]found)
	p.known = readLocals(p.db.ReadTxn(), p.endpoints)
	p.locals = p.known
	counted := false
	for _, m := range ctmap.Maps() {
		if !m.Established && !counted { // the established come first
			counted = true
			if err := p.correctShares(); err != nil {
				return err
			}
		}
		if err := p.collect(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

func (p *pass) collect(ctx context.Context, m ctmap.Map) error {
	begin := time.Now()
	r, capacity, err := p.kernel.Read(m)
	if err != nil {
		return err
	}
	sum := found{capacity: capacity}
	for last := false; !last; {
		var flows []ctmap.Flow
		if flows, last, err = r.Next(); err != nil {
			return err
		}
		if err := p.judge(m, flows, &sum); err != nil {
			return err
		}
		if !last {
			if err := p.rest(ctx); err != nil {
				return err
			}
		}
	}
	sum.took = time.Since(begin)
	p.found[m.Name] = sum
	return nil
}

// rest leaves the CPU to others, unless somebody waits for room.
func (p *pass) rest(ctx context.Context) error {
	if p.pause > 0 && len(p.heard.wake) > 0 {
		p.pause = 0
	}
	heartbeat.Busy(ctx)
	if p.pause == 0 {
		return ctx.Err()
	}
	return heartbeat.Sleep(ctx, p.pause)
}

// judge deletes what is over of a slice and counts the rest. Endpoints are looked up after their flows were read: a flow
// comes after its endpoint.
func (p *pass) judge(m ctmap.Map, flows []ctmap.Flow, sum *found) error {
	now, err := p.kernel.Now()
	if err != nil {
		return err
	}
	if p.locals == nil || !p.locals.current() {
		p.locals = readLocals(p.db.ReadTxn(), p.endpoints)
	}
	for i := range flows {
		f := &flows[i]
		switch {
		case bpf.CtExpired(&f.Entry, now):
			gone, err := p.kernel.Delete(m, &f.Key, func(e *bpf.CtEntry) bool { return bpf.CtExpired(e, now) })
			if err != nil {
				return err
			}
			if gone {
				sum.expired++
				continue
			}
		case p.locals != nil && p.locals.orphan(f):
			ids := [2]uint16{f.Entry.Opener, f.Entry.Target}
			gone, err := p.kernel.Delete(m, &f.Key, func(e *bpf.CtEntry) bool { return [2]uint16{e.Opener, e.Target} == ids })
			if err != nil {
				return err
			}
			if gone {
				sum.orphaned++
				continue
			}
		}
		sum.entries++
		if m.Established {
			p.shares[f.Owner()]++
		}
	}
	return nil
}

// correctShares writes what was counted where programs count otherwise: they cannot know what is deleted here, and their
// own counts may drift. Flows that came or went during the pass may be missing until the next.
func (p *pass) correctShares() error {
	counts, err := p.kernel.Counts()
	if err != nil {
		return err
	}
	for id, have := range counts {
		want := p.shares[uint16(id)]
		if id == 0 || have == want {
			continue
		}
		if err := p.kernel.SetCount(uint16(id), want); err != nil {
			return err
		}
	}
	return nil
}

// ratio is the largest share of a map that was over.
func (p *pass) ratio() (most float64) {
	for _, f := range p.found {
		if f.capacity > 0 {
			most = max(most, float64(f.expired+f.orphaned)/float64(f.capacity))
		}
	}
	return most
}
