package cniconf

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/fsnotify/fsnotify"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/tables/cniconfig"
	"github.com/waggle-net/waggle/pkg/tables/configs"
)

func TestRestorations_ThirdInAMinute_IsAConflict(t *testing.T) {
	t.Parallel()
	r, now, wanted := &restorations{}, time.Unix(1000, 0), []byte("list")
	o := options{Config{WriteCNIConfWhenReady: "/x/05.conflist"}}
	change := func(want time.Duration) {
		t.Helper()
		wait := r.changed(wanted, "its plugins are other", now)
		if wait != want {
			t.Errorf("wait of %v, want %v", wait, want)
		}
		now = now.Add(wait)
		if r.changed(wanted, "its plugins are other", now) != 0 {
			t.Error("the wait does not end")
		}
		r.written(wanted, now)
	}
	change(0) // the first write of the run restores nothing
	change(0)
	change(restoreMin)
	if err := r.conflict(o); err != nil {
		t.Errorf("after two restorations: %v", err)
	}
	change(2 * restoreMin)
	err := r.conflict(o)
	if err == nil || !strings.Contains(err.Error(), "/x/05.conflist (3 restorations)") || !strings.Contains(err.Error(), "found: its plugins are other; let") {
		t.Errorf("after three restorations: %v", err)
	}
	o.ReadCNIConf = "/mine.json"
	if err := r.conflict(o); err == nil || !strings.Contains(err.Error(), "add its plugin to /mine.json") {
		t.Errorf("with --read-cni-conf: %v", err)
	}

	// The agent's own contents change: no restoration, and no wait.
	wanted = []byte("another list")
	change(0)
	if r.count != 3 {
		t.Errorf("%d restorations after a change of the agent's own", r.count)
	}

	now = now.Add(calm - time.Second)
	if r.ok(wanted, now); r.conflict(o) == nil {
		t.Error("the conflict ended too early")
	}
	now = now.Add(time.Second)
	if r.ok(wanted, now); r.conflict(o) != nil {
		t.Error("the conflict does not end")
	}
	change(0) // the wait starts again
}

func TestRestorations_RareChanges_AreNoConflict(t *testing.T) {
	t.Parallel()
	r, now, wanted := &restorations{}, time.Unix(1000, 0), []byte("list")
	r.ok(wanted, now)
	for range 10 {
		now = now.Add(calm)
		if wait := r.changed(wanted, "", now); wait != 0 {
			t.Errorf("wait of %v", wait)
		}
		if r.written(wanted, now); r.conflict(options{}) != nil {
			t.Error("one change a minute is a conflict")
		}
	}
}

// Another program repairs the file while a restoration is pending: the file is intact only from then on.
func TestRestorations_RepairedByAnotherProgram_CalmStartsThere(t *testing.T) {
	t.Parallel()
	r, now, wanted := &restorations{count: 20, wanted: []byte("list"), intact: time.Unix(1000, 0)}, time.Unix(1000, 0), []byte("list")
	if wait := r.changed(wanted, "", now); wait != restoreMax {
		t.Errorf("wait of %v", wait)
	}
	now = now.Add(restoreMax / 2)
	r.ok(wanted, now)
	if _, pending := r.pending(now); pending || r.count != 20 {
		t.Errorf("pending %t, %d restorations", pending, r.count)
	}
	if wait := r.changed(wanted, "", now.Add(calm)); wait != 0 {
		t.Errorf("wait of %v after a minute", wait)
	}
}

// world is a controller without a hive, in a bubble. The test acts as the kernel that reports changes.
type world struct {
	path   string
	events chan fsnotify.Event
	health *cell.SimpleHealth
	state  func() cniconfig.State
}

// newWorld starts a controller that runs until the test ends.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{path: filepath.Join(t.TempDir(), "05-waggle.conflist"), events: make(chan fsnotify.Event)}
	db := statedb.New()
	table, err := cniconfig.NewTable(db)
	if err != nil {
		t.Fatal(err)
	}
	flags, err := configs.NewTable(db)
	if err != nil {
		t.Fatal(err)
	}
	c := &controller{params{Log: slog.New(slog.DiscardHandler), DB: db, Table: table, Configs: flags, Agent: agentconfig.Agent{StateDir: "/run/w"},
		Options: options{Config{WriteCNIConfWhenReady: w.path, CNIChainingMode: modeNone}}}}
	w.state = func() cniconfig.State {
		row, _, _ := table.Get(db.ReadTxn(), cniconfig.ByPath(w.path))
		return row.State
	}
	var health cell.Health
	health, w.health = cell.NewSimpleHealth()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- c.maintain(ctx, health, watch{add: func(string) error { return nil }, events: w.events})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	synctest.Wait()
	return w
}

func (w *world) read(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(w.path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// change writes the file as another program.
func (w *world) change(t *testing.T, contents string) {
	t.Helper()
	if err := os.WriteFile(w.path, []byte(contents), 0o600); err != nil {
		t.Fatal(err)
	}
	w.events <- fsnotify.Event{Name: w.path, Op: fsnotify.Write}
}

// A program that restores its own contents at once must not make the agent write, and runtimes reload, every 50 ms.
func TestMaintain_ConflictWithAnotherWriter_BacksOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		own, changes := w.read(t), 0
		for start := time.Now(); time.Since(start) < 20*time.Minute; time.Sleep(100 * time.Millisecond) {
			if w.read(t) == own {
				w.change(t, `{"name":"other","plugins":[{"type":"bridge"}]}`)
				changes++
			}
			if changes == 2 && w.state() != cniconfig.Written {
				t.Fatalf("state %s after one restoration", w.state())
			}
		}
		if changes < 14 || changes > 19 { // waits of 0, 50 ms, 100 ms, ... 205 s, 300 s, 300 s
			t.Errorf("%d changes in 20 minutes", changes)
		}
		synctest.Wait()
		if w.health.Level != cell.StatusDegraded || w.state() != cniconfig.Conflict ||
			!strings.Contains(w.health.Error.Error(), "another program keeps changing "+w.path) {
			t.Errorf("state %s, health %s %s: %v", w.state(), w.health.Level, w.health.Status, w.health.Error)
		}

		// The other program ends. The agent restores the file, and reports success after a minute.
		time.Sleep(restoreMax + time.Second)
		if w.read(t) != own {
			t.Error("the file is not restored")
		}
		time.Sleep(calm + verify)
		synctest.Wait()
		if w.health.Level != cell.StatusOK || w.state() != cniconfig.Written {
			t.Errorf("after the conflict: state %s, health %s", w.state(), w.health.Level)
		}
	})
}

// A chained plugin is no conflict: the agent writes nothing, however often the other program writes.
func TestMaintain_ChainedPlugin_IsNotWrittenAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		const own = `{"type":"waggle-cni","state-dir":"/run/w","socket-path":"/run/w/waggle.sock"}`
		for _, added := range []string{"istio-cni", "tuning", "istio-cni"} {
			contents := listOf(own + `,{"type":"` + added + `"}`)
			w.change(t, contents)
			time.Sleep(2 * verify)
			synctest.Wait()
			if w.read(t) != contents || w.health.Level != cell.StatusOK || !strings.HasSuffix(w.health.Status, "added the plugins "+added) {
				t.Errorf("health %s %s, file %s", w.health.Level, w.health.Status, w.read(t))
			}
		}
	})
}

// A program that changes files in the directory continuously must not prevent the checks, without which the watchdog reports the loop as stalled.
func TestMaintain_ContinuousEvents_FileIsRestored(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		own := w.read(t)
		w.change(t, `{"name":"other","plugins":[{"type":"bridge"}]}`)
		for start := time.Now(); time.Since(start) < verify+2*settleMax; time.Sleep(settle / 2) {
			w.events <- fsnotify.Event{Name: w.path + ".json", Op: fsnotify.Write}
		}
		if w.read(t) != own {
			t.Error("the file is not restored")
		}
	})
}
