package servicemaps

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"
	"github.com/spf13/pflag"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/servicemap"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
)

// balanced is the output of lb/list: the contents of the kernel's maps. Lists that were not requested are nil.
type balanced struct {
	Frontends []named              `json:"frontends,omitzero"`
	Backends  []servicemap.Backend `json:"backends,omitzero"`
	RevNAT    []reverse            `json:"revnat,omitzero"`
	Ranges    []sourceRange        `json:"sourceRanges,omitzero"`
}

// named is a frontend with its service; the service is empty if the frontend has no row.
type named struct {
	servicemap.Frontend
	Service string `json:"service,omitempty"`
}

// reverse is the address that replaces the backend's address in replies, by the frontend id in flows.
type reverse struct {
	ID uint32 `json:"id"`
	loadbalancer.Address
}

// sourceRange is a prefix whose clients a frontend allows or denies.
type sourceRange struct {
	ID uint32 `json:"id"`
	loadbalancer.Address
	Prefix netip.Prefix `json:"prefix"`
	Policy string       `json:"policy"` // "allow" or "deny"
}

func newListCommand(db *statedb.DB, maps servicemap.Maps, table statedb.Table[*frontends.Frontend]) upstream.ScriptCmdOut {
	return upstream.NewScriptCmd("lb/list", script.Command(script.CmdUsage{
		Summary: "List the frontends and backends in the BPF maps",
		Flags: func(fs *pflag.FlagSet) {
			for _, l := range servicemap.Lists() {
				fs.Bool(l.Name, false, l.Usage)
			}
			fs.Bool("json", false, "Print JSON")
		},
	}, func(s *script.State, args ...string) (script.WaitFunc, error) {
		only, err := chosen(s.Flags, args)
		if err != nil {
			return nil, err
		}
		fronts, backs, err := maps.Dump()
		if err != nil {
			return nil, err
		}
		txn := db.ReadTxn()
		all := newBalanced(fronts, backs, func(a loadbalancer.Address) string {
			if row, _, found := table.Get(txn, frontends.ByAddress(a)); found {
				return row.Service
			}
			return ""
		})
		out := all.text(only)
		if asJSON, err := s.Flags.GetBool("json"); err != nil {
			return nil, err
		} else if asJSON {
			data, err := json.MarshalIndent(all.only(only), "", "  ")
			if err != nil {
				return nil, err
			}
			out = string(data) + "\n"
		}
		return func(*script.State) (string, string, error) { return out, "", nil }, nil
	}))
}

// chosen returns the name of the requested list, or "" for the default output.
func chosen(flags *pflag.FlagSet, args []string) (only string, err error) {
	if len(args) > 0 {
		return "", fmt.Errorf("want no arguments, got %q: %w", args, script.ErrUsage)
	}
	only, err = servicemap.ChosenList(flags.GetBool)
	if err != nil {
		return "", fmt.Errorf("%w: %w", err, script.ErrUsage)
	}
	return only, nil
}

func newBalanced(fronts []servicemap.Frontend, backs []servicemap.Backend, serviceOf func(loadbalancer.Address) string) balanced {
	all := balanced{Frontends: []named{}, Backends: backs, RevNAT: []reverse{}, Ranges: []sourceRange{}}
	for _, f := range fronts {
		all.Frontends = append(all.Frontends, named{f, serviceOf(f.Address)})
		all.RevNAT = append(all.RevNAT, reverse{f.ID, f.Address})
		policy := "allow"
		if f.Deny {
			policy = "deny"
		}
		for _, p := range f.Ranges {
			all.Ranges = append(all.Ranges, sourceRange{f.ID, f.Address, p, policy})
		}
	}
	slices.SortFunc(all.RevNAT, func(a, b reverse) int { return cmp.Or(cmp.Compare(a.ID, b.ID), a.Address.Compare(b.Address)) })
	all.RevNAT = slices.Compact(all.RevNAT) // two scopes share an id
	return all
}

// only returns one list, or frontends and backends.
func (b balanced) only(list string) balanced {
	switch list {
	case "frontends":
		return balanced{Frontends: b.Frontends}
	case "backends":
		return balanced{Backends: b.Backends}
	case "revnat":
		return balanced{RevNAT: b.RevNAT}
	case "source-ranges":
		return balanced{Ranges: b.Ranges}
	}
	return balanced{Frontends: b.Frontends, Backends: b.Backends}
}

// text formats a list for the terminal.
func (b balanced) text(list string) string {
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 8, 2, ' ', 0)
	switch list {
	case "backends":
		fmt.Fprintln(w, "ID\tBACKEND\tLOCAL")
		for _, e := range b.Backends {
			fmt.Fprintf(w, "%d\t%s\t%t\n", e.ID, e.Address, e.Local)
		}
	case "revnat":
		fmt.Fprintln(w, "ID\tFRONTEND")
		for _, e := range b.RevNAT {
			fmt.Fprintf(w, "%d\t%s\n", e.ID, e.Address)
		}
	case "source-ranges":
		fmt.Fprintln(w, "ID\tFRONTEND\tSOURCE RANGE\tPOLICY")
		for _, e := range b.Ranges {
			fmt.Fprintf(w, "%d\t%s\t%s\t%s\n", e.ID, e.Address, e.Prefix, e.Policy)
		}
	case "frontends":
		fmt.Fprintln(w, "ID\tFRONTEND\tSCOPE\tSERVICE\tCOUNT\tFLAGS")
		for _, f := range b.Frontends {
			fmt.Fprintf(w, "%s\t%d\t%s\n", f.columns(), len(f.Backends), orDash(strings.Join(f.Flags, ",")))
		}
	default:
		b.withBackends(w)
	}
	_ = w.Flush() // a Builder returns no error
	return out.String()
}

func (b balanced) withBackends(w *tabwriter.Writer) {
	at := map[uint32]string{}
	for _, e := range b.Backends {
		at[e.ID] = e.Address.String()
	}
	fmt.Fprintln(w, "ID\tFRONTEND\tSCOPE\tSERVICE\tBACKENDS\tFLAGS")
	for _, f := range b.Frontends {
		var who []string
		for _, id := range f.Backends {
			who = append(who, cmp.Or(at[id], strconv.FormatUint(uint64(id), 10)+" (missing)"))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", f.columns(), orDash(strings.Join(who, ",")), orDash(strings.Join(f.Flags, ",")))
	}
}

// columns returns the first columns of a line.
func (f named) columns() string {
	scope := "external"
	if f.Scope == bpf.ScopeInternal {
		scope = "internal"
	}
	return fmt.Sprintf("%d\t%s\t%s\t%s", f.ID, f.Address, scope, orDash(f.Service))
}

func orDash(text string) string { return cmp.Or(text, "-") }
