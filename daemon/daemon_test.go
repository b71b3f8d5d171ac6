package daemon

import (
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/spf13/pflag"
	"go.uber.org/goleak"

	"github.com/waggle-net/waggle/pkg/hive"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestAgent_PopulateChangesNothing builds every object of the agent without starting it: constructors are complete and unique, and none of them writes a
// file, opens a descriptor, creates a link or starts a goroutine (TestMain checks goroutines).
func TestAgent_PopulateChangesNothing(t *testing.T) {
	dir := t.TempDir()
	links, descriptors := list(t, "/sys/class/net"), len(list(t, "/proc/self/fd"))

	var db *statedb.DB
	h, err := hive.Build(Agent, cell.Invoke(func(d *statedb.DB) { db = d }))
	if err != nil {
		t.Fatal(err)
	}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	h.RegisterFlags(flags)
	if err := flags.Parse([]string{"--state-dir=" + dir + "/state", "--bpf-root=" + dir + "/bpf", "--node-name=bee"}); err != nil {
		t.Fatal(err)
	}
	if err := hive.Populate(h, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}

	if got := list(t, "/sys/class/net"); !slices.Equal(got, links) {
		t.Errorf("links before %q, after %q", links, got)
	}
	// The first poller of the process (epoll and its wake-up descriptor) belongs to the Go runtime, not to a cell.
	if got := len(list(t, "/proc/self/fd")); got > descriptors+2 {
		t.Errorf("%d open descriptors before, %d after", descriptors, got)
	}
	if err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if path != dir {
			t.Errorf("populating made %s", path)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	for _, table := range db.GetTables(db.ReadTxn()) {
		if n := table.NumObjects(db.ReadTxn()); n != 0 && table.Name() != "health" {
			t.Errorf("table %s has %d rows before the start", table.Name(), n)
		}
	}
}

func list(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
