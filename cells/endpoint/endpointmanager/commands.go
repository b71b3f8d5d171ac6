package endpointmanager

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/cilium/hive"
	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/labels"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/endpointstates"
)

// commands provides read-only commands for the shell and for scripts.
func commands(m *manager) hive.ScriptCmdsOut {
	return hive.NewScriptCmds(map[string]script.Cmd{
		"endpoint/list": printing("List endpoints by local id", "", func([]string) (string, error) {
			return m.list(m.db.ReadTxn()), nil
		}),
		"endpoint/get": printing("Show one endpoint by [prefix:]id", "id", func(args []string) (string, error) {
			if len(args) != 1 {
				return "", script.ErrUsage
			}
			ep, err := m.Lookup(args[0])
			if err != nil {
				return "", err
			}
			return show(ep), nil
		}),
	})
}

func printing(summary, args string, run func([]string) (string, error)) script.Cmd {
	return script.Command(script.CmdUsage{Summary: summary, Args: args},
		func(_ *script.State, args ...string) (script.WaitFunc, error) {
			text, err := run(args)
			if err != nil {
				return nil, err
			}
			return func(*script.State) (string, string, error) { return text, "", nil }, nil
		})
}

func (m *manager) list(txn statedb.ReadTxn) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tPOD\tATTACHMENT\tIPV4\tIPV6\tSTATE\tQUARANTINE")
	for ep := range m.endpoints.All(txn) { // the primary index yields them by id
		row := ep.TableRow()
		state := "-"
		if s, _, found := m.states.Get(txn, endpointstates.ByID(ep.ID)); found {
			state = string(s.State)
		}
		fmt.Fprintln(w, strings.Join([]string{row[0], row[1], row[2], row[3], row[4], state, row[6]}, "\t"))
	}
	_ = w.Flush() // a write to memory does not fail
	return b.String()
}

func show(ep *endpoints.Endpoint) string {
	var b strings.Builder
	header, row := ep.TableHeader(), ep.TableRow()
	for i := range header {
		fmt.Fprintf(&b, "%s: %s\n", header[i], row[i])
	}
	fmt.Fprintf(&b, "PodMAC: %s\nHostMAC: %s\nNetns: %s\n", ep.PodMAC, ep.HostMAC, ep.NetnsPath)
	for _, label := range labels.Format(ep.Labels) {
		fmt.Fprintf(&b, "Label: %s\n", label)
	}
	return b.String()
}
