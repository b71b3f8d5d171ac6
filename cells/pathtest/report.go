package pathtest

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/printable"
	tables "github.com/waggle-net/waggle/pkg/tables/pathtests"
)

const (
	// reportInterval is the minimum time between two reports of the module's health, each of which counts all paths.
	reportInterval = 2 * time.Second
	// shownFaults limits the faults in a health message.
	shownFaults = 3
)

// commit writes the rows of a round.
func (t *tester) commit(u update, complete bool) error {
	if done, _ := t.table.Initialized(t.db.ReadTxn()); len(u.put)+len(u.gone) == 0 && (done || !complete) {
		return nil
	}
	txn := t.db.WriteTxn(t.table, t.in.Paths)
	defer txn.Abort()
	for _, row := range u.gone {
		_, _, err := t.table.Delete(txn, row)
		if err := errors.Join(err, t.forgetMode(txn, row)); err != nil {
			return fmt.Errorf("delete the test of the path to node %s: %w", row.Node, err)
		}
	}
	for _, to := range u.put {
		if t.targets[to.name] != to {
			continue // removed or replaced in the same round
		}
		for i, row := range to.rows {
			next := *row
			if next.Next = to.due; !to.peer.inner.IsValid() {
				next.Next = time.Time{}
			}
			to.rows[i] = &next
			_, _, err := t.table.Insert(txn, &next)
			if err := errors.Join(err, t.commitMode(txn, &next)); err != nil {
				return fmt.Errorf("insert the test of the path to node %s: %w", row.Node, err)
			}
		}
	}
	if complete {
		t.initialized(txn)
	}
	txn.Commit()
	return nil
}

// report sets the health of the module. A node that does not answer at all degrades node-health's view, not the paths.
func (t *tester) report(health cell.Health) {
	summary := tables.Summarize(statedb.ToSeq(t.table.All(t.db.ReadTxn())))
	var faults []error
	for _, row := range summary.Failed {
		if row.Fault != tables.Dead && len(faults) < shownFaults {
			faults = append(faults, errors.New(row.Sentence()))
		}
	}
	var trouble error
	for _, to := range t.targets {
		if to.trouble != nil {
			trouble = errors.New(printable.Short(to.trouble.Error(), maxDetail))
		}
	}
	switch {
	case trouble != nil:
		health.Degraded("Some paths cannot be tested", trouble)
	case len(faults) > 0:
		health.Degraded(fmt.Sprintf("Paths to other nodes: %s", summary), errors.Join(faults...))
	default:
		health.OK(fmt.Sprintf("Paths to other nodes: %s, each tested every %v", summary, interval(len(t.targets)+1)))
	}
}
