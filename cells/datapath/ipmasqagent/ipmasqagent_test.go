package ipmasqagent

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"
	"github.com/spf13/pflag"
	"go.uber.org/goleak"

	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/hive"
	"github.com/waggle-net/waggle/pkg/tables/masquerade"
	"github.com/waggle-net/waggle/pkg/testseed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.Run(t, "testdata/*.txtar", func(testing.TB) []cell.Cell { return []cell.Cell{Cell, cell.Provide(newCompleteCommand)} })
}

// newCompleteCommand returns the command "complete", which prints whether the table permits pruning.
func newCompleteCommand(db *statedb.DB, table statedb.Table[masquerade.IPMasq]) upstream.ScriptCmdOut {
	return upstream.NewScriptCmd("complete", script.Command(script.CmdUsage{Summary: "Tell whether the table is complete"},
		func(*script.State, ...string) (script.WaitFunc, error) {
			done, _ := table.Initialized(db.ReadTxn())
			return func(*script.State) (string, string, error) { return fmt.Sprintln(done), "", nil }, nil
		}))
}

func TestParse(t *testing.T) {
	t.Parallel()
	all := strings.Join(defaults, " ")
	for name, c := range map[string]struct{ content, want, err string }{
		"nothing":          {"", all + " 169.254.0.0/16 fe80::/10", ""},
		"a comment":        {"# later\n", all + " 169.254.0.0/16 fe80::/10", ""},
		"both families":    {"nonMasqueradeCIDRs: [10.1.2.3/8, 'fd00::/8']", "10.0.0.0/8 169.254.0.0/16 fd00::/8 fe80::/10", ""},
		"JSON":             {`{"nonMasqueradeCIDRs":["10.0.0.0/8"],"masqLinkLocal":true,"masqLinkLocalIPv6":true,"resyncInterval":"60s"}`, "10.0.0.0/8", ""},
		"none at all":      {"{nonMasqueradeCIDRs: [], masqLinkLocal: true, masqLinkLocalIPv6: true}", "", ""},
		"link-local alone": {"masqLinkLocalIPv6: true", "169.254.0.0/16", ""},
		"link-local twice": {"{nonMasqueradeCIDRs: [169.254.0.0/16, 169.254.0.0/16], masqLinkLocal: true, masqLinkLocalIPv6: true}", "169.254.0.0/16", ""},
		"an address":       {"nonMasqueradeCIDRs: [10.0.0.1]", "", `"10.0.0.1": want a prefix such as 10.0.0.0/8`},
		"a mapped prefix":  {"nonMasqueradeCIDRs: ['::ffff:10.0.0.0/104']", "", "want a prefix such as"},
		"an unknown key":   {"nonMasqueradeCIDR: [10.0.0.0/8]", "", `unknown field "nonMasqueradeCIDR"`},
		"another type":     {"nonMasqueradeCIDRs: 10.0.0.0/8", "", "want nonMasqueradeCIDRs, masqLinkLocal and masqLinkLocalIPv6 in YAML or JSON"},
		"no YAML":          {"nonMasqueradeCIDRs: [", "", "in YAML or JSON"},
		"a list":           {"[10.0.0.0/8]", "", "in YAML or JSON"},
	} {
		rows, err := parse([]byte(c.content))
		var got []string
		for p, row := range rows {
			if p != row.Prefix {
				t.Errorf("%s: %s stands under %s", name, row.Prefix, p)
			}
			got = append(got, p.String())
		}
		want := strings.Fields(c.want)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v, %v\nwant %v, %s", name, got, err, want, c.err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("nonMasqueradeCIDRs: [10.0.0.0/8]\nmasqLinkLocal: true")
	f.Add(`{"nonMasqueradeCIDRs":["fd00::/8"]}`)
	f.Fuzz(func(t *testing.T, content string) {
		rows, err := parse([]byte(content))
		if err != nil {
			return
		}
		for p, row := range rows {
			if p != row.Prefix || p != p.Masked() || row.From == "" {
				t.Errorf("%s: %+v", p, row)
			}
		}
	})
}

// TestChurn replaces, corrupts, empties and removes the file at random, alone or with its folder, as editors, ConfigMaps and users do. The table
// follows each valid content, and keeps the last valid content after an invalid one.
func TestChurn(t *testing.T) {
	t.Parallel()
	random := testseed.New(t)
	dir := filepath.Join(t.TempDir(), "config")
	path := filepath.Join(dir, "ip-masq-agent")
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var db *statedb.DB
	var table statedb.Table[masquerade.IPMasq]
	var root *cell.SimpleHealth
	h := hive.New(celltest.Infrastructure(), Cell,
		cell.Invoke(func(d *statedb.DB, t statedb.Table[masquerade.IPMasq], s *cell.SimpleHealth) {
			db, table, root = d, t, s
		}))
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	h.RegisterFlags(flags)
	do(flags.Parse([]string{"--enable-ip-masq-agent", "--ip-masq-agent-config-path=" + path}))
	do(h.Start(hivetest.Logger(t), t.Context()))
	t.Cleanup(func() { do(h.Stop(hivetest.Logger(t), context.Background())) })

	last, _ := parse(nil)
	await := func(what string) {
		t.Helper()
		var have map[netip.Prefix]masquerade.IPMasq
		for range 3000 {
			have = map[netip.Prefix]masquerade.IPMasq{}
			for row := range table.All(db.ReadTxn()) {
				have[row.Prefix] = row
			}
			if maps.Equal(have, last) {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Fatalf("%s: the table has %v, want %v", what, have, last)
	}
	// waitRejected waits until the agent has read and rejected the file with this invalid prefix. Before that, an unchanged table proves nothing.
	waitRejected := func(prefix string) {
		t.Helper()
		for range 3000 {
			if s := root.GetChild("ip-masq-agent.job-follow-file"); s != nil {
				s.Lock()
				reported := s.Level == cell.StatusDegraded && s.Error != nil && strings.Contains(s.Error.Error(), prefix)
				s.Unlock()
				if reported {
					return
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Fatalf("health does not report the invalid prefix %s", prefix)
	}
	await("without a folder")
	for n := range 25 {
		do(os.MkdirAll(dir, 0o700))
		good := fmt.Sprintf("nonMasqueradeCIDRs: [10.%d.0.0/16, 'fd00:%x::/32']\nmasqLinkLocal: %v\n", n, n, random.IntN(2) == 0)
		switch random.IntN(6) {
		case 0: // in place
			do(os.WriteFile(path, []byte(good), 0o600))
		case 1, 2: // in one step, as a ConfigMap
			do(os.WriteFile(path+".new", []byte(good), 0o600))
			do(os.Rename(path+".new", path))
		case 3:
			bad := fmt.Sprintf("10.%d.0.0/99", n)
			do(os.WriteFile(path, []byte("nonMasqueradeCIDRs: [10.0.0.0/8, "+bad+"]"), 0o600))
			waitRejected(bad)
			good = "bad"
		case 4:
			do(os.RemoveAll(path))
			good = ""
		case 5:
			do(os.RemoveAll(dir))
			good = ""
		}
		if good != "bad" {
			want, err := parse([]byte(good))
			do(err)
			last = want
		}
		await(fmt.Sprintf("after change %d, %q", n, good))
	}
}
