package maps

import (
	"fmt"
	"strings"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/script"

	"github.com/waggle-net/waggle/pkg/datapath/pinnedmaps"
)

func newCommands(m pinnedmaps.Maps) upstream.ScriptCmdOut {
	return upstream.NewScriptCmd("maps/dump", script.Command(
		script.CmdUsage{
			Summary: "Print the entries of a BPF map",
			Args:    "name",
			Detail:  []string{"One line per entry, sorted by key. The table bpf-maps lists the names."},
		},
		func(_ *script.State, args ...string) (script.WaitFunc, error) {
			if len(args) != 1 {
				return nil, fmt.Errorf("want the name of one map, got %d arguments: %w", len(args), script.ErrUsage)
			}
			entries, err := m.Entries(args[0])
			if err != nil {
				return nil, err
			}
			var out strings.Builder
			for _, e := range entries {
				fmt.Fprintf(&out, "%s: %s\n", e.Key, e.Value)
			}
			return func(*script.State) (string, string, error) { return out.String(), "", nil }, nil
		},
	))
}
