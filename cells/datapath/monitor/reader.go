package monitor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/datapath/events"
	"github.com/waggle-net/waggle/pkg/dissect"
	"github.com/waggle-net/waggle/pkg/monitorwire"
	"github.com/waggle-net/waggle/pkg/tables/drops"
	"github.com/waggle-net/waggle/pkg/tables/flows"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

const (
	keep      = 256                    // maximum number of drops in the table
	settle    = 100 * time.Millisecond // debounce interval of commits
	lostEvery = 2 * time.Second        // interval between reads of the counter of lost events
	minRetry  = 100 * time.Millisecond
	maxRetry  = time.Minute
)

// pump moves events from the ring buffer to the tables and the hub. Only the goroutine of run uses it.
type pump struct {
	db     *statedb.DB
	table  statedb.RWTable[*drops.Drop]
	source source
	hub    *hub
	ledger *ledger
	reason *thrifty // why policies denied a packet

	seq     uint64        // of the last drop
	pending []*drops.Drop // not committed yet
	since   time.Time     // time of the first pending drop
	stats   stats
	checked time.Time // time of the last read of the counter of lost events
}

// stats are the numbers for the health of the module.
type stats struct {
	lost     uint64 // counter of the kernel at the last read
	baseline bool   // the counter was read once; events that were lost before this run are not reported
	missed   uint64 // lost in this run
	unknown  uint64 // records that could not be decoded
}

// pumpParams are the dependencies of a pump.
type pumpParams struct {
	cell.In

	DB        *statedb.DB
	Drops     statedb.RWTable[*drops.Drop]
	Ledger    *ledger
	Explainer explainer
	Source    source
	Hub       *hub
}

func newPump(p pumpParams) *pump {
	return &pump{db: p.DB, table: p.Drops, source: p.Source, hub: p.Hub, ledger: p.Ledger, reason: newThrifty(p.Explainer)}
}

func registerReader(jobs job.Group, p *pump) {
	watchdog.AddRetried(jobs, "read-events", p.run, minRetry, maxRetry)
}

func (p *pump) run(ctx context.Context, health cell.Health) error {
	r, err := p.source.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	stop := context.AfterFunc(ctx, func() { _ = r.Close() }) // wakes the read
	defer stop()
	p.report(health)
	for {
		now := time.Now()
		p.checkLost(r, now, health)
		watchdog.IdleFor(ctx, lostEvery)
		record, err := r.Read(p.deadline(now))
		watchdog.Busy(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			p.commit()
			p.ledger.commit(time.Now())
			continue
		case err != nil:
			return fmt.Errorf("read events: %w", err)
		}
		p.take(record, time.Now())
	}
}

// deadline returns the time at which the wait for the next record must end: the next commit or the next read of the counter of lost events.
func (p *pump) deadline(now time.Time) time.Time {
	at := now.Add(lostEvery)
	if due, some := p.ledger.due(); some && due.Before(at) {
		at = due
	}
	if due := p.since.Add(settle); len(p.pending) > 0 && due.Before(at) {
		at = due
	}
	return at
}

// take handles one record. The reader owns the memory of the record and reuses it after the call.
func (p *pump) take(record []byte, now time.Time) {
	if !p.hub.idle() {
		p.hub.send(&monitorwire.Payload{Data: events.Wire(record), Type: monitorwire.TypeSample})
	}
	event, err := events.Decode(record)
	if err != nil {
		p.stats.unknown++
		return
	}
	switch e := event.(type) {
	case *events.Drop:
		packet := dissect.Ethernet(e.Packet)
		flow := flowOfDrop(e, packet)
		p.count(flow, now)
		row := rowOf(e, packet, now)
		if flow != nil {
			row.Policy = p.reason.why(packetOf(flow), now)
		}
		p.drop(row, now)
		p.sendNote(row)
	case *events.Verdict:
		p.count(flowOfVerdict(e, dissect.Ethernet(e.Packet)), now)
	}
	p.ledger.commit(now)
}

// sendNote sends the explanation of a drop to the listeners; the record of the drop has none.
func (p *pump) sendNote(row *drops.Drop) {
	if row.Policy == "" || p.hub.idle() {
		return
	}
	note := events.Note{Header: events.Header{Endpoint: row.Endpoint}, Drop: row.Seq, Policy: row.Policy}
	if data, err := note.Encode(); err == nil {
		p.hub.send(&monitorwire.Payload{Data: data, Type: monitorwire.TypeSample})
	}
}

func (p *pump) count(flow *flows.Flow, now time.Time) {
	if flow != nil {
		p.ledger.add(flow, now)
	}
}

func (p *pump) drop(row *drops.Drop, now time.Time) {
	if len(p.pending) == 0 {
		p.since = now
	}
	p.seq++
	row.Seq = p.seq
	p.pending = append(p.pending, row)
	if len(p.pending) >= keep || now.Sub(p.since) >= settle {
		p.commit()
	}
}

// commit inserts the pending drops into the table and deletes the oldest rows beyond keep.
func (p *pump) commit() {
	if len(p.pending) == 0 {
		return
	}
	txn := p.db.WriteTxn(p.table)
	defer txn.Commit()
	for _, d := range p.pending {
		_, _, _ = p.table.Insert(txn, d)
	}
	for d := range p.table.All(txn) { // the oldest come first
		if d.Seq+keep > p.seq {
			break
		}
		_, _, _ = p.table.Delete(txn, d)
	}
	p.pending = p.pending[:0]
}

// checkLost reports lost events to the listeners and to the health of the module.
func (p *pump) checkLost(r reader, now time.Time, health cell.Health) {
	if now.Sub(p.checked) < lostEvery {
		return
	}
	p.checked = now
	lost, err := r.Lost()
	if err != nil {
		health.Degraded("cannot count lost events", err)
		return
	}
	if n := lost - p.stats.lost; p.stats.baseline && n > 0 {
		p.stats.missed += n
		p.hub.send(&monitorwire.Payload{Lost: n, Type: monitorwire.TypeLost})
	}
	p.stats.lost, p.stats.baseline = lost, true
	p.report(health)
}

func (p *pump) report(health cell.Health) {
	message := "reading events"
	if p.stats.missed > 0 {
		message += fmt.Sprintf(", %d lost because the ring buffer was full", p.stats.missed)
	}
	if p.stats.unknown > 0 {
		message += fmt.Sprintf(", %d of unknown type", p.stats.unknown)
	}
	health.OK(message)
}

// rowOf returns the row of an event, without a sequence number.
func rowOf(d *events.Drop, s dissect.Summary, now time.Time) *drops.Drop {
	return &drops.Drop{
		Time: now, Reason: uint8(d.Reason), ReasonText: d.Reason.String(), Direction: d.Direction(),
		Endpoint: d.Endpoint, Target: uint16(d.DestinationID), Identity: d.SourceIdentity, IfIndex: d.IfIndex,
		Proto: s.Proto, Src: s.Src, Dst: s.Dst, SrcPort: s.SrcPort, DstPort: s.DstPort,
		Length: d.Length, Location: fmt.Sprintf("%s:%d", d.File, d.Line),
	}
}
