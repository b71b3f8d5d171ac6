package pathtest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cilium/hive/cell"

	"github.com/waggle-net/waggle/pkg/printable"
	"github.com/waggle-net/waggle/pkg/tables/pathtests"
)

const (
	// reportInterval is the minimum time between two reports of the module's health. Each report counts all paths.
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
	for _, row := range u.gone {
		if t.targets[row.Node] == nil {
			t.paths.set(row.Node, nil)
		}
	}
	for _, to := range u.put {
		if t.targets[to.name] == to {
			t.paths.set(to.name, to.rows)
		}
	}
	return nil
}

// verdicts caches the verdicts of paths, so that a report need not read all rows.
type verdicts struct {
	states   map[string]pathtests.State // by name of the node
	faulty   map[string]*pathtests.Test // of paths that have failed or are healed
	failed   map[string]struct{}        // paths of which a test other than direct has failed
	passed   int
	unknown  int
	troubled map[*target]struct{} // targets with trouble; report removes targets whose trouble has ended
}

func newVerdicts() verdicts {
	return verdicts{states: map[string]pathtests.State{}, faulty: map[string]*pathtests.Test{}, failed: map[string]struct{}{}, troubled: map[*target]struct{}{}}
}

// set replaces the rows of a path, in the order of the table. Without rows the path is removed.
func (v *verdicts) set(name string, rows []*pathtests.Test) {
	v.count(v.states[name], -1)
	delete(v.states, name)
	delete(v.faulty, name)
	if delete(v.failed, name); (&target{rows: rows}).failed() {
		v.failed[name] = struct{}{}
	}
	for p := range pathtests.Paths(slices.Values(rows)) {
		v.states[name] = p.State
		if v.count(p.State, 1); p.Fault != nil {
			v.faulty[name] = p.Fault
		}
	}
}

func (v *verdicts) count(s pathtests.State, n int) {
	switch s {
	case pathtests.Passed:
		v.passed += n
	case pathtests.Unknown:
		v.unknown += n
	}
}

func (v *verdicts) summary() pathtests.Summary {
	s := pathtests.Summary{Paths: len(v.states), Passed: v.passed, Unknown: v.unknown}
	for _, name := range slices.Sorted(maps.Keys(v.faulty)) {
		if row := v.faulty[name]; row.State == pathtests.Healed {
			s.Healed = append(s.Healed, row)
		} else {
			s.Failed = append(s.Failed, row)
		}
	}
	return s
}

// report sets the health of the module. A dead node does not degrade it, because node-health reports the node.
func (t *tester) report(health cell.Health) {
	summary := t.paths.summary()
	var faults []error
	for _, row := range summary.Failed {
		if row.Fault != pathtests.Dead && len(faults) < shownFaults {
			faults = append(faults, errors.New(row.Sentence()))
		}
	}
	var trouble error
	for to := range t.paths.troubled {
		if to.trouble == nil || t.targets[to.name] != to {
			delete(t.paths.troubled, to)
			continue
		}
		trouble = errors.New(printable.Short(to.trouble.Error(), maxDetail))
	}
	switch {
	case trouble != nil:
		health.Degraded("some paths cannot be tested", trouble)
	case len(faults) > 0:
		health.Degraded(fmt.Sprintf("paths to other nodes: %s", summary), errors.Join(faults...))
	default:
		health.OK(fmt.Sprintf("paths to other nodes: %s, each tested at least every %v", summary, interval(len(t.targets)+1)))
	}
}
