package celltest

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/script"
	"github.com/cilium/hive/script/scripttest"
	"golang.org/x/tools/txtar"

	"github.com/waggle-net/waggle/pkg/heartbeat"
)

// stalled is how long a script in virtual time may take of real time. Scripts do not sleep there, so only one that hangs takes so long.
const stalled = 5 * time.Minute

// virtualTimeout bounds the virtual time of a script.
const virtualTimeout = 20 * time.Minute

// RunVirtual is [Run] in virtual time: each script has a bubble of [synctest], in which time passes only while every goroutine
// sleeps. A script that waits ten seconds takes none, what happens after nine of them has happened, and what happens after eleven
// has not. No goroutine of the cells may block in the kernel (sockets, inotify, netlink): virtual time would stand still.
//
// The command "sleep" lets virtual time pass, and a command with "*" is repeated for twenty minutes of it.
func RunVirtual(t *testing.T, pattern string, cells func(t testing.TB) []cell.Cell) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no script matches %s: %v", pattern, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			watchdog := time.AfterFunc(stalled, func() {
				panic(file + " has not ended in " + stalled.String() + " of real time: a goroutine of its bubble blocks in the kernel or never sleeps")
			})
			defer watchdog.Stop()
			synctest.Test(t, func(t *testing.T) { runVirtual(t, file, archive, cells) })
			runtime.GC() // a change iterator that a cell has not closed is closed by the collector, outside the bubble: that ends the process
		})
	}
}

// runVirtual runs one script. The caller provides the bubble.
func runVirtual(t *testing.T, file string, archive *txtar.Archive, cells func(t testing.TB) []cell.Cell) {
	ctx, cancel := context.WithTimeout(context.Background(), virtualTimeout)
	defer cancel()
	work, empty := t.TempDir(), t.TempDir()
	data, err := filepath.Abs(filepath.Dir(file))
	if err != nil {
		t.Fatal(err)
	}
	state, err := script.NewState(ctx, work, []string{"PATH=" + empty, "DATADIR=" + data, "WORK=" + work, "TMPDIR=" + filepath.Join(work, "tmp")})
	if err != nil {
		t.Fatal(err)
	}
	if update := flag.Lookup("scripttest.update"); update != nil {
		state.DoUpdate = update.Value.String() == "true"
	}
	if err := errors.Join(os.Mkdir(filepath.Join(work, "tmp"), 0o700), state.ExtractFiles(archive)); err != nil {
		t.Fatal(err)
	}
	args := shebang(archive)
	for i, arg := range args {
		args[i] = strings.ReplaceAll(arg, "$WORK", work)
	}
	e, loops := engine(t, args, cells)
	scripttest.Run(t, e, state, file, bytes.NewReader(archive.Comment))
	write(t, file, archive, state.FileUpdates)
	loops.wantNoWedge(t)
}

// judgedFor is longer than any limit of package heartbeat for a loop.
const judgedFor = time.Minute

// wantNoWedge lets virtual time pass, and wants that the watchdog of an agent would take no loop for one that hangs, for which liveness ends the agent. So each loop must be
// woken by any change of the tables that it says it follows.
func (j *judge) wantNoWedge(t *testing.T) {
	t.Helper()
	for range judgedFor / heartbeat.Interval {
		time.Sleep(heartbeat.Interval)
		if wedges := j.monitor.Step(heartbeat.Interval, j.db.ReadTxn()); len(wedges) > 0 {
			t.Errorf("after the script: %s", wedges[0].What)
			return
		}
	}
}

// shebang returns the arguments on the script's first line, which are flags of the hive.
func shebang(archive *txtar.Archive) []string {
	line, _, _ := bytes.Cut(archive.Comment, []byte("\n"))
	args, found := strings.CutPrefix(string(line), "#!")
	if !found {
		return nil
	}
	return strings.Fields(args)
}

// write writes what commands want changed in the archive; they want nothing without the flag -scripttest.update.
func write(t *testing.T, file string, archive *txtar.Archive, updates map[string]string) {
	changed := false
	for name, content := range updates {
		if i := slices.IndexFunc(archive.Files, func(f txtar.File) bool { return f.Name == name }); i >= 0 {
			archive.Files[i].Data, changed = []byte(content), true
		}
	}
	if !changed {
		return
	}
	if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
		t.Fatal(err)
	}
}
