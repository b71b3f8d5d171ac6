package monitor

import (
	"container/list"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/datapath/events"
	"github.com/waggle-net/waggle/pkg/dissect"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/policyexplain"
	"github.com/waggle-net/waggle/pkg/tables/flows"
)

const (
	keepFlows  = 2048        // maximum number of rows of the table
	flowSettle = time.Second // debounce interval of commits
)

// ledger counts flows and removes the least recently seen one when there are more than keepFlows. It keeps the rows in memory, so that an event costs one map
// lookup and a commit writes only changed rows.
type ledger struct {
	db    *statedb.DB
	table statedb.RWTable[*flows.Flow]

	known map[flows.Key]*list.Element // of recent
	// recent holds *flows.Flow, the most recently seen one first. An element must not be changed in place, because the table holds it after a commit.
	recent  *list.List
	changed map[flows.Key]struct{} // not committed yet
	gone    []*flows.Flow          // rows to delete
	since   time.Time              // time of the first change that is not committed yet
}

func newLedger(db *statedb.DB, table statedb.RWTable[*flows.Flow]) *ledger {
	return &ledger{db: db, table: table, known: map[flows.Key]*list.Element{}, recent: list.New(), changed: map[flows.Key]struct{}{}}
}

// add counts one event of a flow.
func (l *ledger) add(seen *flows.Flow, now time.Time) {
	if len(l.changed) == 0 {
		l.since = now
	}
	key := seen.Key()
	row := *seen
	row.First, row.Last, row.Count = now, now, 1
	element, found := l.known[key]
	if found {
		before := element.Value.(*flows.Flow)
		row.First, row.Count = before.First, before.Count+1
		if row.Peer == 0 {
			row.Peer = before.Peer
		}
		element.Value = &row
		l.recent.MoveToFront(element)
	} else {
		l.known[key] = l.recent.PushFront(&row)
	}
	l.changed[key] = struct{}{}
	if l.recent.Len() > keepFlows {
		l.forget(l.recent.Back())
	}
}

func (l *ledger) forget(element *list.Element) {
	row := l.recent.Remove(element).(*flows.Flow)
	delete(l.known, row.Key())
	delete(l.changed, row.Key())
	l.gone = append(l.gone, row)
}

// due returns the time at which the changes must be committed; false when there are none.
func (l *ledger) due() (time.Time, bool) { return l.since.Add(flowSettle), len(l.changed) > 0 }

// commit writes the changes to the table once they are due.
func (l *ledger) commit(now time.Time) {
	if due, some := l.due(); !some || now.Before(due) {
		return
	}
	txn := l.db.WriteTxn(l.table)
	defer txn.Commit()
	for _, row := range l.gone {
		_, _, _ = l.table.Delete(txn, row)
	}
	for key := range l.changed {
		_, _, _ = l.table.Insert(txn, l.known[key].Value.(*flows.Flow))
	}
	l.gone = l.gone[:0]
	clear(l.changed)
}

// flowOfDrop returns the denied flow of a drop; nil unless a policy denied the packet.
func flowOfDrop(d *events.Drop, packet dissect.Summary) *flows.Flow {
	if !d.Reason.IsPolicy() || !packet.Src.IsValid() || !packet.Dst.IsValid() {
		return nil
	}
	flow := &flows.Flow{
		Endpoint: d.Endpoint, Direction: policy.Egress, Protocol: packet.Protocol, Port: portOf(packet), Src: packet.Src, Dst: packet.Dst,
		Peer: d.DestinationIdentity, Verdict: flows.Denied, Reason: uint8(d.Reason),
	}
	if d.DestinationID != 0 {
		flow.Endpoint, flow.Direction, flow.Peer = uint16(d.DestinationID), policy.Ingress, d.SourceIdentity
	}
	return flow
}

// flowOfVerdict returns the flow of a verdict that forwards the packet; nil without addresses in the packet. Denied packets are counted by their drop events.
func flowOfVerdict(v *events.Verdict, packet dissect.Summary) *flows.Flow {
	if v.Reason() != events.Forwarded || !packet.Src.IsValid() || !packet.Dst.IsValid() {
		return nil
	}
	flow := &flows.Flow{
		Endpoint: v.Endpoint, Direction: policy.Ingress, Protocol: v.Protocol, Port: v.DstPort, Src: packet.Src, Dst: packet.Dst,
		Peer: v.RemoteIdentity, Verdict: flows.Allowed,
	}
	if v.Egress {
		flow.Direction = policy.Egress
	}
	if v.Audited {
		flow.Verdict = flows.Audited
	}
	return flow
}

// portOf returns the port as policies define it: the destination port, or the type of an ICMP message.
func portOf(packet dissect.Summary) uint16 {
	if packet.Protocol == policy.ProtocolICMP || packet.Protocol == policy.ProtocolICMPv6 {
		return uint16(packet.Type)
	}
	return packet.DstPort
}

// packetOf returns the packet for a policy lookup of a flow.
func packetOf(f *flows.Flow) *policyexplain.Packet {
	return &policyexplain.Packet{Endpoint: f.Endpoint, Direction: f.Direction, Protocol: f.Protocol, Port: f.Port, Own: f.Own(),
		Other: f.Other(), Peer: f.Peer}
}
