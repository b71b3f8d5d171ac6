package noderoutes

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/tables/desiredroutes"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/mtus"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/nodeslots"
	"github.com/waggle-net/waggle/pkg/tables/pathtests"
)

// wanted records the calls of the writer of desired-routes.
type wanted struct {
	mu       sync.Mutex
	expected bool
	replaced bool
	routes   []desiredroutes.Route
	early    []desiredroutes.Route // added before the nodes are complete
}

func (w *wanted) Expect(string) { w.expected = true }

func (w *wanted) Update(_ string, put, remove []desiredroutes.Route) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	into := &w.early
	if w.replaced {
		into = &w.routes
	}
	gone := map[string]bool{}
	for _, r := range append(slices.Clip(put), remove...) {
		gone[r.Key()] = true
	}
	*into = sorted(append(slices.DeleteFunc(slices.Clone(*into), func(r desiredroutes.Route) bool { return gone[r.Key()] }), put...))
	return nil
}

func (w *wanted) Replace(_ string, routes []desiredroutes.Route) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.replaced, w.routes = true, sorted(routes)
	return nil
}

// sorted sorts routes to next hops first, then by MTU, smallest first.
func sorted(routes []desiredroutes.Route) []desiredroutes.Route {
	slices.SortFunc(routes, func(a, b desiredroutes.Route) int {
		if a.Gw.IsValid() != b.Gw.IsValid() {
			return -a.Gw.Compare(b.Gw) // an invalid address compares as the lowest
		}
		return cmp.Or(cmp.Compare(a.MTU, b.MTU), a.Dst.Compare(b.Dst))
	})
	return routes
}

// print returns the desired routes as text, with "not known" before the first Replace.
func (w *wanted) print() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case !w.expected:
		return "not expected\n"
	}
	var b strings.Builder
	routes := w.routes
	if !w.replaced {
		b.WriteString("not known\n")
		routes = w.early
	}
	for _, r := range routes {
		fmt.Fprint(&b, r.Dst)
		if r.Gw.IsValid() {
			fmt.Fprint(&b, " via ", r.Gw)
		}
		fmt.Fprint(&b, " dev ", r.Device)
		if r.Src.IsValid() {
			fmt.Fprint(&b, " src ", r.Src)
		}
		if r.MTU != 0 {
			fmt.Fprint(&b, " mtu ", r.MTU)
		}
		if r.Metric != 0 {
			fmt.Fprint(&b, " metric ", r.Metric)
		}
		fmt.Fprintln(&b)
	}
	return b.String()
}

func (w *wanted) command() hive.ScriptCmdOut {
	return hive.NewScriptCmd("wanted", script.Command(script.CmdUsage{Summary: "print wanted routes"},
		func(*script.State, ...string) (script.WaitFunc, error) {
			return func(*script.State) (string, string, error) { return w.print(), "", nil }, nil
		}))
}

// complete completes the table of nodes.
func complete(db *statedb.DB, table statedb.RWTable[*nodes.Node]) hive.ScriptCmdOut {
	txn := db.WriteTxn(table)
	defer txn.Commit()
	done := table.RegisterInitializer(txn, "test")
	return hive.NewScriptCmd("nodes/complete", script.Command(script.CmdUsage{Summary: "complete the table nodes"},
		func(*script.State, ...string) (script.WaitFunc, error) {
			txn := db.WriteTxn(table)
			defer txn.Commit()
			done(txn)
			return nil, nil
		}))
}

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.RunVirtual(t, "testdata/*.txtar", func(testing.TB) []cell.Cell {
		return []cell.Cell{Cell, agentconfig.Cell, cell.Provide(
			localnode.NewTable, statedb.RWTable[*localnode.LocalNode].ToTable,
			mtus.NewTable, statedb.RWTable[mtus.MTU].ToTable,
			nodes.NewTable, statedb.RWTable[*nodes.Node].ToTable,
			devices.NewTable, statedb.RWTable[*devices.Device].ToTable,
			devices.NewRouteTable, statedb.RWTable[*devices.Route].ToTable,
			pathtests.NewTable, statedb.RWTable[*pathtests.Test].ToTable,
			nodeslots.NewTable, statedb.RWTable[*nodeslots.Slot].ToTable,
			func() *wanted { return new(wanted) },
			func(w *wanted) desiredroutes.Writer { return w },
			(*wanted).command, complete,
		)}
	})
}
