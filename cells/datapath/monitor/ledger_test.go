package monitor

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/policyexplain"
	"github.com/waggle-net/waggle/pkg/tables/flows"
)

func newTestLedger(t testing.TB, db *statedb.DB) *ledger {
	t.Helper()
	table, err := flows.NewTable(db)
	if err != nil {
		t.Fatal(err)
	}
	return newLedger(db, table)
}

// verdictRecord encodes a policy verdict by hand.
func verdictRecord(code int32, flags uint8, endpoint uint16, packet []byte) []byte {
	r := make([]byte, 32, 32+len(packet))
	r[0] = 5
	binary.NativeEndian.PutUint16(r[2:], endpoint)
	binary.NativeEndian.PutUint16(r[12:], uint16(len(packet)))
	binary.NativeEndian.PutUint16(r[14:], 1)
	binary.NativeEndian.PutUint32(r[16:], 300)
	binary.NativeEndian.PutUint32(r[20:], uint32(code))
	binary.NativeEndian.PutUint16(r[24:], 80)
	r[26], r[27] = 17, flags
	return append(r, packet...)
}

const (
	ingress = 1
	egress  = 2
	audited = 1 << 6
)

// rows reads the table by key.
func rows(db *statedb.DB, table statedb.Table[*flows.Flow]) map[string]*flows.Flow {
	all := map[string]*flows.Flow{}
	for f := range table.All(db.ReadTxn()) {
		all[f.Key().String()] = f
	}
	return all
}

func TestLedger_CountsVerdictsAndPolicyDrops(t *testing.T) {
	t.Parallel()
	db := statedb.New()
	l := newTestLedger(t, db)
	p := &pump{db: db, table: table(t, db), hub: newHub(), ledger: l, reason: newThrifty(fakeExplainer{})}
	start := time.Now()
	p.take(verdictRecord(0, egress, 7, udp()), start)
	p.take(verdictRecord(0, egress|audited, 7, udp()), start.Add(time.Millisecond))
	p.take(dropRecord(133, 9, udp()), start)
	p.take(dropRecord(132, 9, udp()), start)             // not dropped by a policy
	p.take(verdictRecord(-133, egress, 9, udp()), start) // denied; its drop event is counted instead
	p.take(verdictRecord(0, ingress, 7, nil), start)
	if n := l.table.NumObjects(db.ReadTxn()); n != 0 {
		t.Errorf("%d rows before a second has passed", n)
	}
	p.ledger.commit(start.Add(flowSettle))
	got := rows(db, l.table)
	if len(got) != 2 {
		t.Fatalf("got %v", got)
	}
	f := got["7/egress/UDP/80/10.1.0.7/10.1.0.8"]
	if f == nil || f.Count != 2 || f.Verdict != flows.Audited || f.Peer != 300 || !f.First.Equal(start) || f.Last.Equal(start) {
		t.Errorf("got %+v", f)
	}
	if f := got["9/egress/UDP/80/10.1.0.7/10.1.0.8"]; f == nil || f.Count != 1 || f.Verdict != flows.Denied || f.Reason != 133 {
		t.Errorf("got %+v", f)
	}
}

func TestLedger_Full_EvictsLeastRecentFlow(t *testing.T) {
	t.Parallel()
	db := statedb.New()
	l := newTestLedger(t, db)
	start := time.Now()
	flow := func(port int) *flows.Flow {
		return &flows.Flow{Endpoint: 7, Direction: policy.Egress, Protocol: 6, Port: uint16(port), Src: netip.MustParseAddr("10.0.0.1"),
			Dst: netip.MustParseAddr("10.0.0.2"), Verdict: flows.Allowed}
	}
	for round := range 3 { // over several commits; port 0 is seen repeatedly
		for i := range keepFlows {
			l.add(flow(1+round*keepFlows+i), start)
			l.add(flow(0), start)
		}
		start = start.Add(flowSettle)
		l.commit(start)
		if n := l.table.NumObjects(db.ReadTxn()); n != keepFlows {
			t.Errorf("%d rows, want %d", n, keepFlows)
		}
	}
	if f := rows(db, l.table)["7/egress/TCP/0/10.0.0.1/10.0.0.2"]; f == nil || f.Count != 3*keepFlows {
		t.Errorf("the one that is seen all the time: %+v", f)
	}
}

// counting is an [explainer] that counts its calls.
type counting int

func (c *counting) Why(*policyexplain.Packet) string { *c++; return "why" }

func TestThrifty_Flood_LimitsLookups(t *testing.T) {
	t.Parallel()
	var asked counting
	e, now := newThrifty(&asked), time.Now()
	p := &policyexplain.Packet{Endpoint: 7}
	for range 1000 {
		if got := e.why(p, now); got != "why" {
			t.Fatalf("the same packet: %q", got)
		}
	}
	if asked != 1 {
		t.Errorf("asked %d times about one packet", asked)
	}
	if e.why(p, now.Add(explainAge)); asked != 2 {
		t.Error("an answer is as good as new after a while")
	}
	now = now.Add(explainAge)
	unknown := 0
	for port := range 10 * explainCacheSize {
		if e.why(&policyexplain.Packet{Endpoint: 7, Port: uint16(port)}, now) == unexplained {
			unknown++
		}
	}
	if asked > 2+explainBurst || unknown < 10*explainCacheSize-explainBurst-1 {
		t.Errorf("asked %d times about different packets, %d stay unexplained", asked, unknown)
	}
	if len(e.known) > explainCacheSize {
		t.Errorf("%d answers are remembered", len(e.known))
	}
}

// BenchmarkTake takes verdicts of 4096 flows in turn, twice the capacity of the table, with a commit per second.
func BenchmarkTake(b *testing.B) {
	db := statedb.New()
	l := newTestLedger(b, db)
	p := &pump{db: db, table: table(b, db), hub: newHub(), ledger: l, reason: newThrifty(fakeExplainer{})}
	record, now := verdictRecord(0, egress, 7, udp()), time.Now()
	i := 0
	for b.Loop() {
		binary.NativeEndian.PutUint16(record[24:], uint16(i%4096))
		now = now.Add(20 * time.Microsecond) // 50,000 a second
		p.take(record, now)
		i++
	}
}
