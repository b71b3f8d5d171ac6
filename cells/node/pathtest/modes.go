package pathtest

import (
	"fmt"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/nodepaths"
	"github.com/waggle-net/waggle/pkg/tables/pathtests"
)

const (
	// directAgain is the number of direct tests in a row that must pass after a failure before packets bypass the tunnel again. It doubles with each failure
	// within calm after the previous recovery, at most maxRelapses times. After the first relapse, passed tests no longer make the next test urgent.
	directAgain = 3
	maxRelapses = 5
	calm        = time.Hour
)

// needed returns the number of tests in a row that must pass before a node is reached directly.
func needed(row *pathtests.Test) int {
	if row.Relapses == 0 {
		return 1
	}
	return directAgain << (row.Relapses - 1)
}

// afterDirect is [after] for the direct test: it needs more tests to recover than to fail, also if it could not run in between, as without a route.
func afterDirect(row *pathtests.Test, f finding, began time.Time, rtt time.Duration) *pathtests.Test {
	if f.state == pathtests.Passed && row.State != pathtests.Passed && row.Passes+1 < needed(row) {
		next := *row
		next.Tested, next.Passes = began, row.Passes+1
		if row.State == pathtests.Unknown {
			next.Detail, next.Strikes = f.detail, 0
		}
		return &next
	}
	next := after(row, f, began, rtt)
	if next.Passes = 0; next.State == pathtests.Passed {
		next.Detail = f.detail
	}
	if next.State == row.State {
		return next
	}
	next.Turned = began
	if row.State == pathtests.Passed && began.Sub(row.Turned) >= calm {
		next.Relapses = 0
	}
	if next.State == pathtests.Failed {
		next.Relapses = min(next.Relapses+1, maxRelapses)
	}
	return next
}

// modeOf returns the path to a node whose direct test is row, and the reason.
func modeOf(row *pathtests.Test) (mode nodepaths.Mode, why string) {
	switch {
	case row.State == pathtests.Passed:
		return nodepaths.Direct, row.Detail
	case row.Passes > 0:
		return nodepaths.Tunnel, fmt.Sprintf("%d of %d consecutive tests have passed after a failure: %s", row.Passes, needed(row), row.Detail)
	case row.Detail == "":
		return nodepaths.Tunnel, "not tested yet"
	}
	return nodepaths.Tunnel, row.Sentence()
}

// commitMode writes the path to a node to the table node-paths.
func (t *tester) commitMode(txn statedb.WriteTxn, row *pathtests.Test) error {
	if row.Kind != pathtests.Direct {
		return nil
	}
	next := &nodepaths.Path{Node: row.Node, Since: time.Now()}
	next.Mode, next.Why = modeOf(row)
	if old, _, found := t.in.Paths.Get(txn, nodepaths.ByNode(row.Node)); found && old.Mode == next.Mode {
		if next.Since = old.Since; *next == *old {
			return nil
		}
	}
	_, _, err := t.in.Paths.Insert(txn, next)
	return err
}

// forgetMode deletes the row that commitMode has written.
func (t *tester) forgetMode(txn statedb.WriteTxn, row *pathtests.Test) error {
	if row.Kind != pathtests.Direct {
		return nil
	}
	_, _, err := t.in.Paths.Delete(txn, &nodepaths.Path{Node: row.Node})
	return err
}
