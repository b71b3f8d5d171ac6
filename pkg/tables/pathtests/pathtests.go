// Package pathtests defines the table of the tests of the paths to other nodes: whether packets of pods arrive, of which size, and the cause of losses.
package pathtests

import (
	"cmp"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"github.com/waggle-net/waggle/pkg/column"
	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/printable"
)

// Kind is the kind of a test.
type Kind string

// Kinds, in the order of the table.
const (
	Echo      Kind = "echo"      // ICMP to an address in the tunnel, without a tunnel to one of a pod range, in each family; when lost, to the node
	Size      Kind = "size"      // ICMP of the largest size that pods send, which must not be fragmented
	Checksum  Kind = "checksum"  // TCP with a reply of about 1,200 bytes, only where ICMP of that size passes
	Aggregate Kind = "aggregate" // TCP with a reply of many segments, which devices merge into one packet
	Direct    Kind = "direct"    // ICMP between pod-range addresses outside the tunnel, in each family; only with --routing-mode=hybrid
)

// Kinds are all kinds of tests.
var Kinds = []Kind{Echo, Size, Checksum, Aggregate, Direct}

// State is the result of a test.
type State string

// States. A path fails only after several failed tests in a row.
const (
	Unknown State = "unknown" // not tested yet, or the test is no evidence about the path
	Passed  State = "passed"
	Failed  State = "failed"
	Healed  State = "healed" // the fault exists, but packets of pods take another path
)

// States are all states.
var States = []State{Passed, Failed, Healed, Unknown}

// Fault is the kind of a fault.
type Fault string

// Faults.
const (
	Dead       Fault = "dead"       // the node does not reply at all, which is not a fault of the path
	Blocked    Fault = "blocked"    // the node replies, but no packet arrives through the tunnel
	OneWay     Fault = "one-way"    // packets of the peer arrive, packets of this node do not
	Large      Fault = "size"       // large packets are lost
	Corrupted  Fault = "checksum"   // TCP is lost, ICMP is not
	Aggregates Fault = "aggregates" // single segments pass and are lost when a device merges them
	NotDirect  Fault = "not-direct" // packets of pods are lost without a tunnel, and the node replies
)

// Faults are all faults.
var Faults = []Fault{Dead, Blocked, OneWay, Large, Corrupted, Aggregates, NotDirect}

// Test is one row. It is never changed in place.
type Test struct {
	Node  string     `json:"node"`
	UID   string     `json:"uid,omitempty"` // UID of the object of the node; another UID means another node
	Kind  Kind       `json:"kind"`
	Addr  netip.Addr `json:"addr"` // inside the tunnel or, without one, in a pod range; invalid if the node publishes none
	State State      `json:"state"`
	// Fault is the fault that was found; empty unless the state is failed or healed.
	Fault Fault `json:"fault,omitempty"`
	// Detail describes the fault in a sentence, or why the state is unknown. It is printable.
	Detail string `json:"detail,omitempty"`
	// Remedy describes the remedy of the fault.
	Remedy  string        `json:"remedy,omitempty"`
	RTT     time.Duration `json:"rtt,omitempty"`     // ns of the last answered echo
	Bytes   int           `json:"bytes,omitempty"`   // of size: largest packet that passes, in bytes with IP header; 0 while unknown or below 1,280
	Strikes int           `json:"strikes,omitempty"` // failed tests since the last success, at most the threshold
	// Passes counts the direct tests in a row that passed after a failure, and Relapses the failures less than an hour apart.
	Passes   int       `json:"passes,omitempty"`
	Relapses int       `json:"relapses,omitempty"`
	Turned   time.Time `json:"turned,omitzero"` // of direct: start of the test that set the current state
	Tested   time.Time `json:"tested,omitzero"` // beginning of the last test
	Good     time.Time `json:"good,omitzero"`   // start of the last test that passed
	Next     time.Time `json:"next,omitzero"`   // start time of the next test
}

// Is reports whether both rows describe the same address of the same node.
func (t *Test) Is(o *Test) bool {
	return t.Node == o.Node && t.UID == o.UID && t.Kind == o.Kind && t.Addr == o.Addr
}

// TableHeader implements statedb.TableWritable.
func (*Test) TableHeader() []string {
	return []string{"Node", "Test", "Address", "State", "RTT", "Bytes", "Strikes", "Tested", "Good", "Next", "Detail"}
}

// TableRow implements statedb.TableWritable.
func (t *Test) TableRow() []string {
	rtt, bytes, addr := "-", "-", "-"
	if t.RTT > 0 {
		rtt = t.RTT.Round(time.Microsecond).String()
	}
	if t.Bytes > 0 {
		bytes = strconv.Itoa(t.Bytes)
	}
	if t.Addr.IsValid() {
		addr = t.Addr.String()
	}
	return []string{printable.Text(t.Node), string(t.Kind), addr, string(t.State), rtt, bytes, strconv.Itoa(t.Strikes), column.Time(t.Tested), column.Time(t.Good),
		column.Time(t.Next), printable.Text(t.Sentence())}
}

// Sentence returns the detail with its remedy.
func (t *Test) Sentence() string {
	if t.Remedy == "" {
		return t.Detail
	}
	return t.Detail + ": " + t.Remedy
}

// key orders rows by node, then by kind. Names of nodes have no slash.
func key(node string, kind Kind) string {
	order := map[Kind]string{Echo: "0", Size: "1", Checksum: "2", Aggregate: "3", Direct: "4"}[kind]
	return node + "/" + cmp.Or(order, string(kind))
}

var testIndex = statedb.Index[*Test, string]{
	Name:       "test",
	FromObject: func(t *Test) index.KeySet { return index.NewKeySet(index.String(key(t.Node, t.Kind))) },
	FromKey:    index.String,
	FromString: func(s string) (index.Key, error) {
		node, kind, _ := strings.Cut(s, "/")
		return index.String(key(node, Kind(kind))), nil
	},
	Unique: true,
}

// ByTest finds a test of the path to a node.
func ByTest(node string, kind Kind) statedb.Query[*Test] { return testIndex.Query(key(node, kind)) }

// The index holds only tests with a fault, which are few.
var faultIndex = indexes.OmitZero(indexes.Shared("fault", indexes.String, func(t *Test) Fault { return t.Fault }))

// ByFault finds the tests with a fault, including healed ones.
var ByFault = faultIndex.Query

// Carried returns, for each path that loses large packets, the largest packet that it carries, in bytes with its IP header, by node name; 0 if even
// small ones may be lost. changed is closed when the result may have changed.
func Carried(txn statedb.ReadTxn, table statedb.Table[*Test]) (bytes map[string]int, changed <-chan struct{}) {
	failed, changed := table.ListWatch(txn, ByFault(Large))
	bytes = map[string]int{}
	for t := range failed {
		bytes[t.Node] = t.Bytes
	}
	return bytes, changed
}

// CorruptedPaths returns the names of the nodes to which a device of the underlay corrupts checksums, healed or not. changed is closed when the result may
// have changed.
func CorruptedPaths(txn statedb.ReadTxn, table statedb.Table[*Test]) (nodes map[string]bool, changed <-chan struct{}) {
	corrupted, changed := table.ListWatch(txn, ByFault(Corrupted))
	nodes = map[string]bool{}
	for t := range corrupted {
		nodes[t.Node] = true
	}
	return nodes, changed
}

// NewTable makes the table "path-tests".
func NewTable(db *statedb.DB) (statedb.RWTable[*Test], error) {
	return statedb.NewTable(db, "path-tests", testIndex, faultIndex)
}
