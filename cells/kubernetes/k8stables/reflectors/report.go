package reflectors

import (
	"context"
	"fmt"
	"sync"

	"github.com/cilium/hive/cell"

	"github.com/waggle-net/waggle/cells/kubernetes/k8stables/tables"
	"github.com/waggle-net/waggle/pkg/printable"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// report publishes the state of one reflector: as one line of health and, until its table is complete, in sources.
type report struct {
	set   *tables.Set
	table string

	mu          sync.Mutex // guards the fields below
	health      cell.Health
	list, watch error // last error; nil after a success
	write       error
	synced      bool
	rejected    int
	partly      int // objects in use without their invalid parts
	held        missingRows
	first       tables.Reject
}

// listed records the result of a list. The result of a list that ctx has cancelled is ignored.
func (r *report) listed(ctx context.Context, err error) {
	if ctx.Err() == nil {
		r.change(func() { r.list = err })
	}
}

func (r *report) watched(ctx context.Context, err error) {
	if ctx.Err() == nil {
		r.change(func() { r.watch = err })
	}
}

func (r *report) recordWrite(err error) { r.change(func() { r.write = err }) }

// replaced records that a list was applied, with the rejected objects and the rows that the list lacks.
func (r *report) replaced(rejected map[string]tables.Reject, held missingRows) {
	r.change(func() {
		r.list, r.write, r.synced, r.held = nil, nil, true, held
		r.count(rejected)
	})
}

func (r *report) rejects(rejected map[string]tables.Reject, held missingRows) {
	r.change(func() {
		r.held = held
		r.count(rejected)
	})
}

func (r *report) count(rejected map[string]tables.Reject) {
	r.rejected, r.partly, r.first = 0, 0, tables.Reject{}
	for _, row := range rejected {
		if row.Used {
			r.partly++
			continue
		}
		if r.rejected++; r.first.Object == "" || row.Object < r.first.Object {
			r.first = row
		}
	}
}

func (r *report) change(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
	switch {
	case r.write != nil:
		r.health.Degraded("write "+r.table, r.write)
	case r.list != nil:
		r.health.Degraded("list", r.list)
		r.waiting(r.list)
	case r.watch != nil:
		r.health.Degraded("watch", r.watch)
	case r.held.many():
		r.health.Degraded(r.held.String(), errRetained)
	case r.rejected > 0:
		r.health.Degraded(fmt.Sprintf("%d objects rejected, see the table k8s-rejects", r.rejected),
			fmt.Errorf("%s: %s", r.first.Object, r.first.Reason))
	case r.synced && r.held.rows > 0:
		r.health.OK("in step; " + r.held.String() + ", for some minutes")
	case r.synced && r.partly > 0:
		r.health.OK(fmt.Sprintf("in step; %d objects are used in part, see the table k8s-rejects", r.partly))
	case r.synced:
		r.health.OK("in step")
	}
}

const maxText = 300 // maximum length of a text in a row, in bytes

// waiting writes to sources why the table is not complete yet. The row of a complete table stays unchanged.
func (r *report) waiting(why error) {
	txn := r.set.Write()
	defer txn.Abort()
	row, _, _ := r.set.Sources.Get(txn, sources.ByTable(r.table))
	if row.State == sources.Synced {
		return
	}
	row.WaitingFor = printable.Short(sources.FirstList+": "+why.Error(), maxText)
	if err := r.set.SetSource(txn, row); err == nil {
		txn.Commit()
	}
}
