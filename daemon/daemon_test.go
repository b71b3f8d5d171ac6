package daemon

import (
	"bytes"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
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

// TestAgent_ListsBeginBeforeProgramsLoad: start hooks run one after the other, and the one that loads the programs is the longest. The first lists, which
// readiness also requires, must arrive meanwhile. The state of the previous run is read before that, and the API answers after it.
func TestAgent_ListsBeginBeforeProgramsLoad(t *testing.T) {
	t.Parallel()
	const job = "*job.queuedJob.Start"
	for source, flag := range map[string]string{"API server": "--k8s-api-server=127.0.0.1:1", "manifests": "--enable-k8s=false"} {
		t.Run(source, func(t *testing.T) {
			t.Parallel()
			hooks, after := startHooks(t, flag), 0
			for _, want := range []string{"maps.(*store).start", "endpointmanager.registerRestore", "k8stables.(*previousRun).look", job,
				"loader.(*generation).start", "apiserver.(*listener).start"} {
				i := slices.IndexFunc(hooks[after:], func(hook string) bool { return strings.HasPrefix(hook, want) })
				if i < 0 {
					t.Fatalf("no start hook %s follows the hooks %q", want, hooks[:after])
				}
				if want == job && i != 0 { // the job that fills the tables
					t.Errorf("%d start hooks are between the hook %s and a job", i, hooks[after-1])
				}
				after += i + 1
			}
		})
	}
}

var hookLine = regexp.MustCompile(`(?m)^  • (\S+) `)

// startHooks returns the names of the start hooks of the agent with a flag, in their order.
func startHooks(t *testing.T, flag string) (hooks []string) {
	t.Helper()
	h, err := hive.Build(Agent)
	if err != nil {
		t.Fatal(err)
	}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	h.RegisterFlags(flags)
	if err := flags.Parse([]string{"--state-dir=" + t.TempDir(), "--node-name=bee", flag}); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	if err := hive.Populate(h, log); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := h.PrintObjects(&out, log); err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(out.String(), "Start hooks:")
	text, _, _ = strings.Cut(text, "Stop hooks:")
	for _, match := range hookLine.FindAllStringSubmatch(text, -1) {
		hooks = append(hooks, match[1])
	}
	return hooks
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
