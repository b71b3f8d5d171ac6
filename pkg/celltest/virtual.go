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

	"github.com/waggle-net/waggle/pkg/watchdog"
)

// stalled limits the real time of a script in virtual time. Such a script does not sleep in real time, so only a script that hangs reaches the limit.
const stalled = 5 * time.Minute

// virtualTimeout limits the virtual time of a script.
const virtualTimeout = 20 * time.Minute

// RunVirtual is [Run] in virtual time: each script runs in a bubble of [synctest], in which time advances only while every goroutine
// sleeps. A script that waits for ten seconds takes no real time; afterwards a timer of nine seconds has fired, and a timer of eleven
// has not. No goroutine of the cells may block in the kernel (sockets, inotify, netlink), because that stops virtual time.
//
// The command "sleep" advances virtual time. A command with "*" is repeated until the script has taken twenty minutes of virtual time.
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
			runtime.GC() // if a cell left a change iterator open, the collector closes it outside the bubble, and the process ends
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
	loops.requireNoStall(t)
}

// watchdogTime is longer than any limit of package watchdog for a loop.
const watchdogTime = time.Minute

// requireNoStall advances virtual time and fails the test if the watchdog reports a stalled loop, for which the liveness probe would end an agent. So each loop
// must wake on any change of the tables that it names to the watchdog.
func (j *loopChecker) requireNoStall(t *testing.T) {
	t.Helper()
	for range watchdogTime / watchdog.Interval {
		time.Sleep(watchdog.Interval)
		if stalls := j.monitor.Step(watchdog.Interval, j.db.ReadTxn()); len(stalls) > 0 {
			t.Errorf("after the script: %s", stalls[0].What)
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

// write stores the changes of commands in the archive. Without the flag -scripttest.update there are none.
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
