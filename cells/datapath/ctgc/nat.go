package ctgc

import (
	"context"
	"net/netip"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/ctmap"
	"github.com/waggle-net/waggle/pkg/datapath/natmap"
	"github.com/waggle-net/waggle/pkg/tables/ipamaddresses"
)

// collectNat collects one map of translated flows. Both entries of a pair are deleted, the entry of the first direction first: no packet may be translated
// whose replies could not be.
func (p *pass) collectNat(ctx context.Context, m natmap.Map) error {
	begin := time.Now()
	r, capacity, err := p.nat.ReadNat(m)
	if err != nil {
		return err
	}
	defer r.Close()
	sum := found{capacity: capacity}
	err = inSlices(ctx, p, r.Next, func(flows []natmap.Flow) error { return p.evaluateNat(flows, &sum) })
	sum.took = time.Since(begin)
	p.found[m.Name] = sum
	return err
}

// evaluateNat deletes the dead flows of a slice and counts the others.
func (p *pass) evaluateNat(flows []natmap.Flow, sum *found) error {
	now, err := p.kernel.Now()
	if err != nil {
		return err
	}
	if err := p.refresh(); err != nil {
		return err
	}
	for i := range flows {
		f := &flows[i]
		gone, err := p.evaluatePair(f, now, sum)
		if err != nil {
			return err
		}
		if gone {
			continue
		}
		sum.entries++
		p.count(f)
	}
	return nil
}

// count counts a flow by the entry of its first direction, for the endpoint for which the programs count it.
func (p *pass) count(f *natmap.Flow) {
	if !f.Reply() {
		p.translations.add(f)
	}
}

// countDeleted counts a flow whose entry of the first direction this pass has deleted. The argument may be either entry of the flow.
func (p *pass) countDeleted(f *natmap.Flow) {
	if p.deleted != nil { // a sweep does not count; it requests a pass that does
		p.deleted.add(f)
	}
}

// translated are numbers of translated flows, as counted by the programs.
type translated struct {
	endpoints map[uint16]bpf.NatCount // by endpoint, 0 for none
	node      bpf.NatCount            // initiated by the node itself
}

func newTranslated() *translated { return &translated{endpoints: make(map[uint16]bpf.NatCount)} }

func (t *translated) add(f *natmap.Flow) {
	if f.Flags&uint32(bpf.NatNode) != 0 {
		addFlow(&t.node, f)
		return
	}
	count := t.endpoints[uint16(f.Endpoint)]
	addFlow(&count, f)
	t.endpoints[uint16(f.Endpoint)] = count
}

func addFlow(to *bpf.NatCount, f *natmap.Flow) {
	if f.Key.IPv6 {
		to.Ipv6++
	} else {
		to.Ipv4++
	}
}

// evaluatePair reports whether it deleted the entry. It does not count the reverse entry of a deleted entry: by the time that the pass reads it, it has been deleted,
// or is evaluated itself.
func (p *pass) evaluatePair(f *natmap.Flow, now uint32, sum *found) (bool, error) {
	switch {
	case p.services != nil && p.services.gone(f):
		return p.deleteServed(f, sum)
	case p.locals != nil && p.locals.orphanNat(f) || p.quarantined.matches(f):
		n, err := p.deletePair(f, func(e *natmap.Flow) bool { return e.Endpoint == f.Endpoint })
		sum.orphaned += n
		return true, err
	case p.excluded != nil && p.excluded.has(f.Key.Tuple().Destination.Addr()):
		n, err := p.excluded.end(p, f)
		if sum.orphaned += n; err != nil || n > 0 {
			return n > 0, err
		}
	}
	if f.Expired(now) {
		expired := func(e *natmap.Flow) bool { return e.Expired(now) }
		reverse, found, err := p.nat.LookupNat(&f.Reverse)
		if err != nil || found && reverse.Reverse == f.Key && !reverse.Expired(now) {
			return false, err
		}
		n, err := p.deletePair(f, expired)
		sum.expired += n
		return true, err
	}
	return false, nil
}

// deleteServed deletes a flow whose service or backend is gone, and reports whether it deleted this entry. It deletes the entry of the first direction first,
// so that the next packet gets a remaining backend. A reply to the previous packet may be in flight, so the reply entry and the entry of conntrack are deleted
// after replyTimeout.
func (p *pass) deleteServed(f *natmap.Flow, sum *found) (bool, error) {
	own, reverse := f.Key, f.Reverse
	if f.Reply() {
		own, reverse = reverse, own
	}
	ended, err := p.nat.DeleteNat(&own, func(e *natmap.Flow) bool {
		return e.Reverse == reverse && e.Service == f.Service && e.Backend == f.Backend
	})
	if err != nil {
		return false, err
	}
	if ended {
		p.countDeleted(f)
		p.served.replies.expect(reverse)
		sum.unserved++
	}
	if !f.Reply() {
		return ended, nil // false if a program has created another flow with this key
	}
	if p.served.replies.expected(reverse) {
		return false, nil
	}
	// A backend that is added again has another id, and a new flow to it has the same reply entry.
	if next, found, err := p.nat.LookupNat(&own); err != nil || found && next.Reverse == reverse {
		return false, err
	}
	gone, err := p.nat.DeleteNat(&reverse, func(e *natmap.Flow) bool {
		return e.Reverse == own && e.Service == f.Service && e.Backend == f.Backend
	})
	if err != nil || !gone {
		return gone, err
	}
	sum.unserved++
	t := f.Key.Tuple()
	key, _ := ctmap.KeyOf(bpf.CtFlow{Initiator: t.Source, Responder: t.Destination, Protocol: t.Protocol})
	for _, m := range ctmap.Maps() {
		if m.IPv6 != key.IPv6 {
			continue
		}
		if _, err := p.kernel.Delete(m, &key, func(*bpf.CtEntry) bool { return true }); err != nil {
			return true, err
		}
	}
	return true, nil
}

// deletePair deletes an entry and its reverse entry, each if it names the other one and dead returns true for it, and returns the number of deleted entries. The
// reply entry stays while the entry of the first direction exists: a packet may have recreated the flow.
func (p *pass) deletePair(f *natmap.Flow, dead func(*natmap.Flow) bool) (n uint64, err error) {
	own, reverse := f.Key, f.Reverse
	if f.Reply() {
		own, reverse = reverse, own
	}
	gone, err := p.nat.DeleteNat(&own, func(e *natmap.Flow) bool { return e.Reverse == reverse && dead(e) })
	if err != nil {
		return n, err
	}
	if gone {
		n++
		p.countDeleted(f)
	}
	if first, found, err := p.nat.LookupNat(&own); err != nil || found && first.Reverse == reverse {
		return n, err
	}
	if gone, err = p.nat.DeleteNat(&reverse, func(e *natmap.Flow) bool { return e.Reverse == own && dead(e) }); gone {
		n++
	}
	return n, err
}

// orphanNat reports whether the flow belongs to an endpoint that is removed, or has other addresses.
func (l *locals) orphanNat(f *natmap.Flow) bool {
	if f.Endpoint == 0 {
		return false
	}
	a, found := l.byID[uint16(f.Endpoint)]
	return !found || !anyAddr(f, func(addr netip.Addr) bool { return addr == a.ipv4 || addr == a.ipv6 })
}

// quarantined are the quarantined addresses of removed pods, at one state of the table.
type quarantined struct {
	addrs   map[netip.Addr]struct{}
	changed <-chan struct{} // closed when the table changes
}

func (r quarantined) matches(f *natmap.Flow) bool {
	return len(r.addrs) > 0 && anyAddr(f, func(addr netip.Addr) bool { _, found := r.addrs[addr]; return found })
}

func readQuarantined(txn statedb.ReadTxn, table statedb.Table[ipamaddresses.Address]) quarantined {
	all, changed := table.AllWatch(txn)
	r := quarantined{addrs: make(map[netip.Addr]struct{}), changed: changed}
	for row := range all {
		if row.State == ipamaddresses.Quarantined {
			r.addrs[row.Addr] = struct{}{}
		}
	}
	return r
}

// anyAddr reports whether is returns true for an address of a flow, before or after the translation.
func anyAddr(f *natmap.Flow, is func(netip.Addr) bool) bool {
	before, after := f.Key.Tuple(), f.Reverse.Tuple()
	return is(before.Source.Addr()) || is(before.Destination.Addr()) || is(after.Source.Addr()) || is(after.Destination.Addr())
}
