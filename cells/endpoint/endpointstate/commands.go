package endpointstate

import (
	"fmt"
	"strings"

	"github.com/cilium/hive"
	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/endpointstates"
)

// commands prints the log of an endpoint, which the table's columns do not show.
func commands(db *statedb.DB, states statedb.Table[*endpointstates.EndpointState]) hive.ScriptCmdOut {
	return hive.NewScriptCmd("endpoint/log", script.Command(
		script.CmdUsage{Summary: "Show the history of one endpoint, without times", Args: "id"},
		func(_ *script.State, args ...string) (script.WaitFunc, error) {
			if len(args) != 1 {
				return nil, script.ErrUsage
			}
			text, err := history(db.ReadTxn(), states, args[0])
			if err != nil {
				return nil, err
			}
			return func(*script.State) (string, string, error) { return text, "", nil }, nil
		}))
}

func history(txn statedb.ReadTxn, states statedb.Table[*endpointstates.EndpointState], id string) (string, error) {
	for row := range states.All(txn) {
		if fmt.Sprint(row.ID) != id {
			continue
		}
		var b strings.Builder
		for _, entry := range row.Log {
			code := "ok"
			if entry.Failed {
				code = "failed"
			}
			fmt.Fprintf(&b, "%s %s: %s\n", code, entry.State, entry.Message)
		}
		return b.String(), nil
	}
	return "", fmt.Errorf("history of endpoint %q: no endpoint has this id", id)
}
