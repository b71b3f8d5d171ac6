// Package pathtests defines the table of the tests of the paths to other nodes: whether packets of pods arrive there, of which size, and what loses them.
package pathtests

import (
	"cmp"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"github.com/waggle-net/waggle/pkg/printable"
)

// Kind is what is tested.
type Kind string

// Kinds, in the order of the table.
const (
	Echo      Kind = "echo"      // ICMP to an address inside the tunnel, without a tunnel between addresses of pod ranges, in each family; when it is lost, to the node itself
	Size      Kind = "size"      // ICMP of the largest size that pods send, which must not be fragmented
	Checksum  Kind = "checksum"  // TCP with an answer of about 1,200 bytes, where ICMP of that size passes
	Aggregate Kind = "aggregate" // TCP with an answer of many segments, which devices join and hand over as one packet
	Direct    Kind = "direct"    // ICMP between addresses of pod ranges past the tunnel, in each family; with --routing-mode=hybrid alone
)

// Kinds are all of them.
var Kinds = []Kind{Echo, Size, Checksum, Aggregate, Direct}

// State is the result of a test.
type State string

// States. Only tests in a row that fail make a path a failed one.
const (
	Unknown State = "unknown" // not tested yet, or it says nothing about the path
	Passed  State = "passed"
	Failed  State = "failed"
	Healed  State = "healed" // the fault is there, and packets of pods pass by another way
)

// States are all of them.
var States = []State{Passed, Failed, Healed, Unknown}

// Fault names what is wrong with a path.
type Fault string

// Faults.
const (
	Dead       Fault = "dead"       // the node does not answer at all, which is no fault of the path
	Blocked    Fault = "blocked"    // the node answers, and nothing comes through the tunnel
	OneWay     Fault = "one-way"    // the peer's packets arrive, those of this node do not
	Large      Fault = "size"       // large packets are lost
	Spoilt     Fault = "checksum"   // TCP is lost, ICMP is not
	Aggregates Fault = "aggregates" // segments pass one by one and are lost when a device joins them
	NotDirect  Fault = "not-direct" // packets of pods are lost past the tunnel, or where there is none, and the node answers
)

// Faults are all of them.
var Faults = []Fault{Dead, Blocked, OneWay, Large, Spoilt, Aggregates, NotDirect}

// Test is one row. It is never changed in place.
type Test struct {
	Node  string     `json:"node"`
	UID   string     `json:"uid,omitempty"` // of the object of the node: another one is another node
	Kind  Kind       `json:"kind"`
	Addr  netip.Addr `json:"addr"` // inside the tunnel or, without one, in a pod range; invalid when the node publishes none
	State State      `json:"state"`
	// Fault is what is wrong, empty unless the state is failed or healed.
	Fault Fault `json:"fault,omitempty"`
	// Detail says what is wrong in a sentence, or why nothing is known. It is printable.
	Detail string `json:"detail,omitempty"`
	// Remedy says what to do about a fault.
	Remedy  string        `json:"remedy,omitempty"`
	RTT     time.Duration `json:"rtt,omitempty"`     // ns of the last echo that was answered
	Bytes   int           `json:"bytes,omitempty"`   // of size: largest packet that passes, in bytes with its IP header; 0 while unknown, and when it is below 1,280
	Strikes int           `json:"strikes,omitempty"` // tests without success since the last one with, at most the threshold
	// Passes is how many tests of direct in a row passed after it failed, and Relapses how often it failed with less than an hour between.
	Passes   int       `json:"passes,omitempty"`
	Relapses int       `json:"relapses,omitempty"`
	Turned   time.Time `json:"turned,omitzero"` // of direct: beginning of the test by which the state became what it is
	Tested   time.Time `json:"tested,omitzero"` // beginning of the last test
	Good     time.Time `json:"good,omitzero"`   // beginning of the last test that passed
	Next     time.Time `json:"next,omitzero"`   // time at which the next test is due
}

// Is reports whether the row is about the same address of the same node.
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
	return []string{printable.Text(t.Node), string(t.Kind), addr, string(t.State), rtt, bytes, strconv.Itoa(t.Strikes), stamp(t.Tested), stamp(t.Good),
		stamp(t.Next), printable.Text(t.Sentence())}
}

// Sentence is the detail with its remedy.
func (t *Test) Sentence() string {
	if t.Remedy == "" {
		return t.Detail
	}
	return t.Detail + ": " + t.Remedy
}

func stamp(at time.Time) string {
	if at.IsZero() {
		return "-"
	}
	return at.UTC().Format(time.RFC3339)
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

// The index holds tests with a fault alone, which few are.
var faultIndex = statedb.Index[*Test, Fault]{
	Name: "fault",
	FromObject: func(t *Test) index.KeySet {
		if t.Fault == "" {
			return index.KeySet{}
		}
		return index.NewKeySet(index.String(string(t.Fault)))
	},
	FromKey:    func(f Fault) index.Key { return index.String(string(f)) },
	FromString: index.FromString,
}

// ByFault finds the tests with a fault, those that are healed as well.
var ByFault = faultIndex.Query

// Carried returns the largest packet, in bytes with its IP header, that each path carries which loses large packets, by the name of the node: 0 when even
// small ones may be lost. changed is closed when the result may be another one.
func Carried(txn statedb.ReadTxn, table statedb.Table[*Test]) (bytes map[string]int, changed <-chan struct{}) {
	failed, changed := table.ListWatch(txn, ByFault(Large))
	bytes = map[string]int{}
	for t := range failed {
		bytes[t.Node] = t.Bytes
	}
	return bytes, changed
}

// SpoiltPaths returns the names of the nodes to which a device of the underlay spoils the checksums of packets, healed or not. changed is closed when the result may be
// another one.
func SpoiltPaths(txn statedb.ReadTxn, table statedb.Table[*Test]) (nodes map[string]bool, changed <-chan struct{}) {
	spoilt, changed := table.ListWatch(txn, ByFault(Spoilt))
	nodes = map[string]bool{}
	for t := range spoilt {
		nodes[t.Node] = true
	}
	return nodes, changed
}

// NewTable makes the table "path-tests".
func NewTable(db *statedb.DB) (statedb.RWTable[*Test], error) {
	return statedb.NewTable(db, "path-tests", testIndex, faultIndex)
}
