package conventions

import (
	"go/ast"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// mayStart lists the functions of the agent that start a goroutine with a go statement, each with the owner that waits for its end. All other work is a job, which
// the job group waits for and the watchdog observes, or runs in a sync.WaitGroup or errgroup.Group, whose Wait is in the job.
var mayStart = map[string]string{
	"cells/datapath/deviceobserver/netlink.go Subscribe":      "the observer reads the channel until it is closed",
	"cells/kubernetes/k8stables/reflectors/demand.go start":   "halt ends it and waits for it",
	"cells/kubernetes/k8stables/reflectors/listwatch.go open": "client-go reads a watch from a channel; it ends with the request, whose context is that of the job, or when the reflector stops the watch",
	"cells/datapath/monitor/server.go stream":                 "the same function closes the connection and waits for it",
	"cells/policy/policystatus/groups.go leadWithGroups":      "the same function ends its context and waits for its error",
	"cells/service/servicecontroller/plan.go computeAhead":    "the returned function ends it and waits for it, before the end of the pass",
	"pkg/leaderwork/leaderwork.go Await":                      "the function done ends it and waits for it",
	"pkg/notify/close.go Close":                               "closing a watch of files takes seconds in the kernel, and an agent that stops does not wait for it",
	"pkg/datapath/rtnl/subscribe.go Subscribe":                "it closes the channel of events, which the subscriber reads until then",
	"pkg/setup/namespace.go onThread":                         "the same function waits for it; its thread ends with it",
	"pkg/kubernetes/kubeapi/kubetest/server.go":               "a server of tests",
	"pkg/testnet/testnet.go":                                  "a kit of tests",
	"pkg/testnet/tun.go":                                      "a kit of tests",
}

// TestGoroutines_BelongToJobs finds go statements whose goroutine may outlive the job that started it.
func TestGoroutines_BelongToJobs(t *testing.T) {
	t.Parallel()
	found := 0
	for _, f := range files(t) {
		if f.test() || !strings.HasPrefix(f.dir, "cells/") && !strings.HasPrefix(f.dir, "pkg/") && f.dir != "daemon" {
			continue
		}
		for _, at := range goStatements(f.syntax) {
			found++
			name := f.path + " " + f.funcAt(at)
			if mayStart[name] == "" && mayStart[f.path] == "" {
				t.Errorf("%s: starts a goroutine: use a job (watchdog.Add) or a sync.WaitGroup; if another owner waits for it, name the owner in mayStart", f.at(at))
			}
		}
	}
	if found < 5 {
		t.Errorf("only %d go statements found: the search is broken", found)
	}
}

func TestGoroutines_BelongToJobs_Finds(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]int{
		`func a() { go b() }`:                                        1,
		`func a() { if true { go func() { go b() }() } }`:            2,
		`func a(w *sync.WaitGroup) { w.Go(func() { b() }); b() }`:    0,
		`func a(jobs job.Group) { watchdog.Add(jobs, "name", run) }`: 0,
	} {
		if got := goStatements(parse(t, "package a\n"+source).syntax); len(got) != want {
			t.Errorf("%s: %d found, want %d", source, len(got), want)
		}
	}
}

func goStatements(root ast.Node) (found []token.Pos) {
	ast.Inspect(root, func(n ast.Node) bool {
		if statement, ok := n.(*ast.GoStmt); ok {
			found = append(found, statement.Pos())
		}
		return true
	})
	return found
}

// behaviour lists packages that code uses which waits, locks, or works on the system. A package of a table defines rows, their indexes and their text.
var behaviour = []string{"context", "sync", "sync/atomic", "os", "io", "net", "net/http", "log/slog", "github.com/cilium/hive/cell", "github.com/cilium/hive/job",
	module + "pkg/watchdog", module + "pkg/loop", module + "pkg/rows", module + "pkg/changefeed"}

func TestTablesHaveNoBehaviour(t *testing.T) {
	t.Parallel()
	found := 0
	for _, f := range files(t) {
		if f.test() || !strings.HasPrefix(f.dir, "pkg/tables/") {
			continue
		}
		found++
		for _, at := range goStatements(f.syntax) {
			t.Errorf("%s: starts a goroutine: work belongs into a cell", f.at(at))
		}
		for _, spec := range f.syntax.Imports {
			if name, _ := strconv.Unquote(spec.Path.Value); slices.Contains(behaviour, name) {
				t.Errorf("%s: imports %s: work belongs into a cell", f.at(spec.Pos()), name)
			}
		}
	}
	if found < 50 {
		t.Errorf("only %d files of tables found: the search is broken", found)
	}
}
