package driftledger

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"
	"go.uber.org/goleak"

	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/drift"
	"github.com/waggle-net/waggle/pkg/tables/driftrepairs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.RunVirtual(t, "testdata/*.txtar", func(testing.TB) []cell.Cell { return []cell.Cell{Cell, cell.Provide(recordCommand)} })
}

// recordCommand is "record kind what found [times]". It acts as a cell that finds drift.
func recordCommand(w drift.Watch) upstream.ScriptCmdOut {
	return upstream.NewScriptCmd("record", script.Command(script.CmdUsage{Summary: "Record a repair", Args: "kind what found [times]"},
		func(_ *script.State, args ...string) (script.WaitFunc, error) {
			times := 1
			if len(args) == 4 {
				times, _ = strconv.Atoi(args[3])
			}
			for range times {
				w.Repairs.Record(driftrepairs.Finding{Kind: driftrepairs.Kind(args[0]), What: args[1], Found: args[2]})
			}
			return nil, nil
		}))
}

// For any number of repaired objects the table stays small and no count is lost.
func TestRecord_ManyObjects_BoundedRowsExactCounts(t *testing.T) {
	t.Parallel()
	db := statedb.New()
	table, err := driftrepairs.NewTable(db)
	if err != nil {
		t.Fatal(err)
	}
	clock := time.Unix(1e9, 0)
	l := &ledger{db: db, table: table, now: func() time.Time { clock = clock.Add(time.Second); return clock }}
	const objects = 3 * maxRows
	for i := range objects {
		l.Record(driftrepairs.Finding{Kind: driftrepairs.Clsact, What: fmt.Sprintf("lxc%d", i), Found: "missing"})
	}
	total, named := uint64(0), false
	for row := range table.All(db.ReadTxn()) {
		total += row.Count
		named = named || row.What == fmt.Sprintf("lxc%d", objects-1)
	}
	if n := table.NumObjects(db.ReadTxn()); n > maxRows || total != objects || !named {
		t.Errorf("%d rows hold %d repairs (the newest: %v), want at most %d with all %d and the newest", n, total, named, maxRows, objects)
	}
}

// Repairs with long intervals are not a conflict, and a conflict ends when the object has been unchanged for some time.
func TestSum_FrequentRepairs_AreConflicts(t *testing.T) {
	t.Parallel()
	db := statedb.New()
	table, err := driftrepairs.NewTable(db)
	if err != nil {
		t.Fatal(err)
	}
	clock := time.Unix(1e9, 0)
	l := &ledger{db: db, table: table, now: func() time.Time { return clock }}
	conflicts := func() int {
		_, _, found := sum(table.All(db.ReadTxn()), clock)
		return len(found)
	}
	for range 2 * conflictThreshold {
		clock = clock.Add(2 * inARow)
		l.Record(driftrepairs.Finding{Kind: driftrepairs.Route, What: "seldom", Found: "missing"})
	}
	if n := conflicts(); n != 0 {
		t.Errorf("repairs every %v are %d fights", 2*inARow, n)
	}
	for range conflictThreshold {
		clock = clock.Add(time.Second)
		l.Record(driftrepairs.Finding{Kind: driftrepairs.Route, What: "often", Found: "missing"})
	}
	if n := conflicts(); n != 1 {
		t.Errorf("repairs every second are %d fights", n)
	}
	clock = clock.Add(inARow + time.Second)
	if n := conflicts(); n != 0 {
		t.Errorf("%d fights go on after they ended", n)
	}
}
