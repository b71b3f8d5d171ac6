package ctgc

import (
	"context"
	"time"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/ctmap"
	"github.com/waggle-net/waggle/pkg/datapath/natmap"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// found is the result of a pass for one map.
type found struct {
	entries, expired, orphaned, unserved uint64
	capacity                             uint32
	took                                 time.Duration
}

// pass evaluates all maps once.
type pass struct {
	*access
	began   time.Time
	pause   time.Duration              // between slices; 0 after a signal
	observe func(tick uint32) *traffic // starts to record nodes; nil if this pass does not
	known   *locals                    // when the pass began; nil if not all endpoints were known then
	found   map[string]found

	// Current state. It is read again after each slice of entries, because a flow is created after the objects that it names.
	locals      *locals   // nil while not all endpoints are known
	services    *snapshot // nil while not all services are known
	quarantined quarantined
	excluded    *excludedPrefixes // nil in a sweep, which does not evaluate prefixes

	traffic      *traffic          // with other nodes; nil if this pass does not record nodes
	shares       map[uint16]uint32 // established flows by endpoint
	translations *translated       // flows that the pass has seen
	deleted      *translated       // flows that the pass has deleted; nil if they are not counted
}

// run deletes dead flows, corrects the quotas, and records its results. While endpoints are unknown, it keeps their flows.
func (p *pass) run(ctx context.Context) error {
	p.shares, p.found = make(map[uint16]uint32), make(map[string]found)
	p.translations, p.deleted = newTranslated(), newTranslated()
	p.known = readLocals(p.db.ReadTxn(), p.endpoints)
	p.locals, p.excluded = p.known, &excludedPrefixes{table: p.exclusions}
	now, err := p.kernel.Now()
	if err != nil {
		return err
	}
	if p.observe != nil {
		p.traffic = p.observe(now)
	}
	before, err := p.kernel.Counts()
	if err != nil {
		return err
	}
	counted := false
	for _, m := range ctmap.Maps() {
		if !m.Established && !counted { // the maps of established flows are first
			counted = true
			if err := p.correctShares(before); err != nil {
				return err
			}
		}
		if err := p.collect(ctx, m); err != nil {
			return err
		}
	}
	counts, err := p.natCounts()
	if err != nil {
		return err
	}
	for _, m := range natmap.Maps() {
		if err := p.collectNat(ctx, m); err != nil {
			return err
		}
	}
	if err := p.correctTranslations(counts); err != nil {
		return err
	}
	return p.collectAffinities()
}

func (p *pass) collect(ctx context.Context, m ctmap.Map) error {
	begin := time.Now()
	r, capacity, err := p.kernel.Read(m)
	if err != nil {
		return err
	}
	sum := found{capacity: capacity}
	err = inSlices(ctx, p, r.Next, func(flows []ctmap.Flow) error { return p.evaluate(m, flows, &sum) })
	sum.took = time.Since(begin)
	p.found[m.Name] = sum
	return err
}

// inSlices evaluates the entries of a map in slices, with pauses.
func inSlices[T any](ctx context.Context, p *pass, next func() ([]T, bool, error), evaluate func([]T) error) error {
	for {
		entries, last, err := next()
		if err != nil {
			return err
		}
		if err := evaluate(entries); err != nil || last {
			return err
		}
		if err := p.rest(ctx); err != nil {
			return err
		}
	}
}

// refresh reads the tables of endpoints, addresses, prefixes and services again if they have changed.
func (p *pass) refresh() (err error) {
	txn := p.db.ReadTxn()
	if p.locals == nil || !open(p.locals.changed) {
		p.locals = readLocals(txn, p.endpoints)
	}
	if p.quarantined.changed == nil || !open(p.quarantined.changed) {
		p.quarantined = readQuarantined(txn, p.addresses)
	}
	if p.excluded != nil {
		p.excluded.read(txn)
	}
	p.services, err = p.served.now(p.db)
	return err
}

// rest sleeps for the pause between two slices. A signal ends the pauses of the pass.
func (p *pass) rest(ctx context.Context) error {
	if p.pause > 0 && len(p.signals.wake) > 0 {
		p.pause = 0
	}
	watchdog.Busy(ctx)
	if p.pause == 0 {
		return ctx.Err()
	}
	return watchdog.Sleep(ctx, p.pause)
}

// evaluate deletes the dead flows of a slice and counts the others.
func (p *pass) evaluate(m ctmap.Map, flows []ctmap.Flow, sum *found) error {
	now, err := p.kernel.Now()
	if err != nil {
		return err
	}
	if err := p.refresh(); err != nil {
		return err
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
			ids := [2]uint16{f.Entry.Initiator, f.Entry.Responder}
			gone, err := p.kernel.Delete(m, &f.Key, func(e *bpf.CtEntry) bool { return [2]uint16{e.Initiator, e.Responder} == ids })
			if err != nil {
				return err
			}
			if gone {
				sum.orphaned++
				continue
			}
		}
		sum.entries++
		if p.traffic != nil {
			p.traffic.see(f)
		}
		if m.Established {
			p.shares[f.Owner()]++
		}
	}
	return nil
}

// ratio returns the largest fraction of a map's capacity that the pass has deleted.
func (p *pass) ratio() (most float64) {
	for _, f := range p.found {
		if f.capacity > 0 {
			most = max(most, float64(f.expired+f.orphaned+f.unserved)/float64(f.capacity))
		}
	}
	return most
}
