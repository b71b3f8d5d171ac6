package servicemaps

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"
	"github.com/spf13/pflag"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/servicemaps"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
)

// balanced is what lb/list prints: what the kernel has.
type balanced struct {
	Frontends []named               `json:"frontends"`
	Backends  []servicemaps.Backend `json:"backends"`
}

// named is a frontend with the service that it is of; empty when nobody wants it any more.
type named struct {
	servicemaps.Frontend
	Service string `json:"service,omitempty"`
}

func newListCommand(db *statedb.DB, maps servicemaps.Maps, table statedb.Table[*frontends.Frontend]) upstream.ScriptCmdOut {
	return upstream.NewScriptCmd("lb/list", script.Command(script.CmdUsage{
		Summary: "List the frontends and backends that the kernel has",
		Flags: func(fs *pflag.FlagSet) {
			fs.Bool("backends", false, "List the backends alone")
			fs.Bool("json", false, "Print JSON")
		},
	}, func(s *script.State, args ...string) (script.WaitFunc, error) {
		if len(args) > 0 {
			return nil, fmt.Errorf("want no arguments, got %q: %w", args, script.ErrUsage)
		}
		asJSON, err := s.Flags.GetBool("json")
		if err != nil {
			return nil, err
		}
		backends, err := s.Flags.GetBool("backends")
		if err != nil {
			return nil, err
		}
		fronts, backs, err := maps.Dump()
		if err != nil {
			return nil, err
		}
		all, txn := balanced{Frontends: []named{}, Backends: backs}, db.ReadTxn()
		for _, f := range fronts {
			n := named{Frontend: f}
			if row, _, found := table.Get(txn, frontends.ByAddress(f.Address)); found {
				n.Service = row.Service
			}
			all.Frontends = append(all.Frontends, n)
		}
		out := all.text(backends)
		if asJSON {
			var data []byte
			data, err = json.MarshalIndent(all, "", "  ")
			out = string(data) + "\n"
		}
		return func(*script.State) (string, string, error) { return out, "", err }, nil
	}))
}

// text is for people.
func (b balanced) text(backends bool) string {
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 8, 2, ' ', 0)
	if backends {
		fmt.Fprintln(w, "ID\tBACKEND\tLOCAL")
		for _, e := range b.Backends {
			fmt.Fprintf(w, "%d\t%s\t%t\n", e.ID, e.Address, e.Local)
		}
		_ = w.Flush() // a builder takes everything
		return out.String()
	}
	at := map[uint32]string{}
	for _, e := range b.Backends {
		at[e.ID] = e.Address.String()
	}
	fmt.Fprintln(w, "ID\tFRONTEND\tSCOPE\tSERVICE\tBACKENDS\tFLAGS")
	for _, f := range b.Frontends {
		scope := "external"
		if f.Scope == bpf.ScopeInternal {
			scope = "internal"
		}
		var who []string
		for _, id := range f.Backends {
			who = append(who, cmp.Or(at[id], strconv.FormatUint(uint64(id), 10)+" (missing)"))
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\n", f.ID, f.Address, scope, cmp.Or(f.Service, "-"), cmp.Or(strings.Join(who, ","), "-"),
			cmp.Or(strings.Join(f.Flags, ","), "-"))
	}
	_ = w.Flush() // likewise
	return out.String()
}
