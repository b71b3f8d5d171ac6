// Package attachments holds the BPF programs that the loader wants on each hook, with the result of the last attempt.
package attachments

import (
	"strconv"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/indexes"
)

// Kind of an attachment.
type Kind string

const (
	PodLink Kind = "pod-link" // clsact with the two shared blocks on the host end of a pod's link, which is then set up
	Block   Kind = "block"    // the cls_bpf filter of one shared block
	TCX     Kind = "tcx"      // a tcx link on a long-lived device
	Hold    Kind = "hold"     // clsact with the two shared blocks on the device that keeps them alive, which stays down
	CGroup  Kind = "cgroup"   // a link of a control group, whose sockets the program serves
)

// Attachment is one row.
type Attachment struct {
	Kind       Kind              `json:"kind"`
	Device     string            `json:"device"`     // interface name, the block's name, or the path of a control group ("/" is the topmost)
	IfIndex    int               `json:"ifIndex"`    // of Device; for a block its number, for a control group 0
	Hook       string            `json:"hook"`       // "ingress", "egress", "both" for a pod link, or the hook of a control group
	Program    string            `json:"program"`    // name of the program; empty for a pod link, which shares the blocks'
	Generation uint64            `json:"generation"` // of the datapath; 0 to keep a program of a previous run
	ProgramID  uint32            `json:"programID"`  // the kernel's number of the program, new with each load; 0 as above
	EndpointID uint16            `json:"endpointID"` // of a pod link; otherwise 0
	MTU        int               `json:"mtu"`        // of a pod link, before another writer changed it; otherwise 0
	Vacant     bool              `json:"vacant"`     // the last attempt failed, and no program of this or a previous run is attached
	Status     reconciler.Status `json:"status"`
}

// Key identifies a row: "<kind>/<device>/<hook>".
func (a *Attachment) Key() string { return string(a.Kind) + "/" + a.Device + "/" + a.Hook }

// Clone returns a copy that may be changed and inserted.
func (a *Attachment) Clone() *Attachment { c := *a; return &c }

// Equal compares the desired part. MTU and Vacant do not count: the right MTU is known only after another writer has changed it, and Vacant is a
// result.
func (a *Attachment) Equal(o *Attachment) bool {
	x, y := *a, *o
	x.MTU, y.MTU, x.Vacant, y.Vacant = 0, 0, false, false
	x.Status, y.Status = reconciler.Status{}, reconciler.Status{}
	return x == y
}

// GetStatus returns the status of the row.
func (a *Attachment) GetStatus() reconciler.Status { return a.Status }

// WithStatus sets the status of a clone.
func (a *Attachment) WithStatus(s reconciler.Status) *Attachment { a.Status = s; return a }

// TableHeader implements statedb.TableWritable.
func (*Attachment) TableHeader() []string {
	return []string{"Kind", "Device", "Hook", "Program", "Generation", "ProgramID", "Endpoint", "Status"}
}

// TableRow implements statedb.TableWritable.
func (a *Attachment) TableRow() []string {
	program := a.Program
	if program == "" {
		program = "-"
	}
	return []string{string(a.Kind), a.Device, a.Hook, program, strconv.FormatUint(a.Generation, 10),
		strconv.FormatUint(uint64(a.ProgramID), 10), strconv.Itoa(int(a.EndpointID)), a.Status.Kind.String()}
}

var keyIndex = indexes.Unique("key", indexes.String, (*Attachment).Key)

var endpointIndex = indexes.OmitZero(indexes.Shared("endpoint", indexes.Uint16, func(a *Attachment) uint16 { return a.EndpointID }))

// Queries.
var (
	ByKey      = keyIndex.Query
	ByEndpoint = endpointIndex.Query
)

// Begun reports whether a packet hook is assigned to a program of the running agent. The loader assigns none before all maps that the programs read are
// filled.
func Begun(txn statedb.ReadTxn, table statedb.Table[*Attachment]) bool {
	for _, kind := range []Kind{Block, TCX} {
		for a := range table.Prefix(txn, ByKind(kind)) {
			if a.ProgramID != 0 {
				return true
			}
		}
	}
	return false
}

// ByKind finds the rows of a kind by prefix. There is one pod link row for each pod of the node.
func ByKind(kind Kind) statedb.Query[*Attachment] { return ByKey(string(kind) + "/") }

// Replaced reports whether every hook runs programs of the running agent, so that no program of a previous run is attached. Control groups have rows
// only if the socket load balancer is on.
func Replaced(txn statedb.ReadTxn, table statedb.Table[*Attachment]) bool {
	count := map[Kind]int{}
	for _, kind := range []Kind{Block, TCX, CGroup} {
		for a := range table.Prefix(txn, ByKind(kind)) {
			count[kind]++
			if !a.replaced() {
				return false
			}
		}
	}
	return count[Block] == 2 && count[TCX] > 0
}

// replaced reports the same for one hook. A hook without a program whose attach fails counts as replaced, because it may fail forever.
func (a *Attachment) replaced() bool {
	done, failed := a.Status.Kind == reconciler.StatusKindDone, a.Status.Kind == reconciler.StatusKindError
	return a.ProgramID != 0 && (done || failed && a.Vacant)
}

// NewTable makes the table "attachments".
func NewTable(db *statedb.DB) (statedb.RWTable[*Attachment], error) {
	return statedb.NewTable(db, "attachments", keyIndex, endpointIndex)
}
