package neighborlimitcheck

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/datapath/sysctlfs"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// procfs is a directory that replaces /proc.
type procfs string

func (p procfs) kernel() kernel {
	return kernel{sysctlfs.Below(string(p)), filepath.Join(string(p), "net/stat")}
}

// set writes the files of a family: gc_thresh2, gc_thresh3 and optionally the counters entries and table_fulls of two CPUs.
func (p procfs) set(args []string) error {
	for _, f := range files {
		if f.family != args[0] {
			continue
		}
		texts := map[string]string{filepath.Join("sys", f.settings, "gc_thresh2"): args[1] + "\n", filepath.Join("sys", f.settings, "gc_thresh3"): args[2] + "\n"}
		if len(args) > 3 {
			entries, errEntries := strconv.Atoi(args[3])
			fulls, errFulls := strconv.Atoi(args[4])
			if err := errors.Join(errEntries, errFulls); err != nil {
				return err
			}
			texts[filepath.Join("net/stat", f.statistics)] = fmt.Sprintf("entries  allocs unresolved_discards table_fulls\n%08x 00000001 00000002 %08x\n%08x 00000003 00000004 %08x\n",
				entries, fulls/2, entries, fulls-fulls/2)
		}
		for name, text := range texts {
			path := filepath.Join(string(p), name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p procfs) commands() hive.ScriptCmdsOut {
	return hive.NewScriptCmds(map[string]script.Cmd{"neighbours": script.Command(script.CmdUsage{Summary: "set what the kernel says of a family", Args: "family soft hard [entries overflows]"},
		func(_ *script.State, args ...string) (script.WaitFunc, error) { return nil, p.set(args) })})
}

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.RunVirtual(t, "testdata/*.txtar", func(t testing.TB) []cell.Cell {
		p := procfs(t.TempDir())
		return []cell.Cell{cell.Module("neighbor-limits", "The cell", Watcher), cell.Provide(p.kernel, p.commands,
			nodes.NewTable, statedb.RWTable[*nodes.Node].ToTable,
			devices.NewRouteTable, statedb.RWTable[*devices.Route].ToTable,
			devices.NewTable, statedb.RWTable[*devices.Device].ToTable,
			endpoints.NewTable, statedb.RWTable[*endpoints.Endpoint].ToTable)}
	})
}

// TestParse_FileOfKernel: the kernel's file has other counters between those that are read, and table_fulls is the sum of all CPUs.
func TestParse_FileOfKernel(t *testing.T) {
	t.Parallel()
	const text = `entries  allocs   destroys hash_grows lookups  hits     res_failed rcv_probes_mcast rcv_probes_ucast periodic_gc_runs forced_gc_runs unresolved_discards table_fulls
00000400 0000c60f 0000cdc4 00000001   0001ba83 00001fc3 000004ad   00000000         00000000         00000ca8         00000064       00000ee2            0000000f
00000400 0000c386 0000bbcf 00000006   0001b0fa 00001f66 000003e7   00000000         00000000         00000000         00000067       00000f23            00000010
`
	if entries, overflows, err := parse(text); entries != 1024 || overflows != 31 || err != nil {
		t.Errorf("%d entries, %d overflows, %v; want 1024 and 31", entries, overflows, err)
	}
}

// TestParse_Malformed: malformed statistics are an error and not a small number.
func TestParse_Malformed(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "\n", "entries allocs\n00000001 00000002\n", "entries table_fulls\n00000001\n", "entries table_fulls\nzz 00000001\n",
		"entries table_fulls\n00000001 -1\n", "entries table_fulls\nffffffffff 00000001\n"} {
		if entries, overflows, err := parse(text); err == nil {
			t.Errorf("%q: %d entries, %d overflows", text, entries, overflows)
		}
	}
}

// TestKernel_ThisMachine reads the real files. In a namespace without the limits, the error must be errHidden.
func TestKernel_ThisMachine(t *testing.T) {
	t.Parallel()
	rows, err := newKernel(agentconfig.Agent{Procfs: "/proc"}).read()
	if _, hidden := os.Stat("/proc/sys/net/ipv4/neigh/default/gc_thresh3"); hidden != nil {
		if !errors.Is(err, errHidden) {
			t.Errorf("rows %v, error %v", rows, err)
		}
		return
	}
	if err != nil || len(rows) == 0 {
		t.Fatalf("rows %v, error %v", rows, err)
	}
	for _, row := range rows {
		if row.Hard < row.Soft || row.Soft < 1 {
			t.Errorf("%+v", row)
		}
	}
}

// TestKernel_Unreadable: a limit that is not a number is an error with the name of the setting.
func TestKernel_Unreadable(t *testing.T) {
	t.Parallel()
	p := procfs(t.TempDir())
	if err := p.set([]string{"ipv4", "512", "many"}); err != nil {
		t.Fatal(err)
	}
	if rows, err := p.kernel().read(); err == nil || !strings.Contains(err.Error(), "gc_thresh3") {
		t.Errorf("rows %v, error %v", rows, err)
	}
}
