package shell

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/hive/script"

	"github.com/waggle-net/waggle/pkg/shell"
)

// reading are the commands of statedb that change nothing. Others, also those that a newer version may add, stay out.
var reading = []string{"db", "db/show", "db/get", "db/list", "db/prefix", "db/lowerbound", "db/watch", "db/initialized", "db/dump"}

// refused are flags of commands that are let in: out writes a file, delete removes rows.
var refused = []string{"out", "delete"}

// commands picks what operators may run from all commands of the agent.
func commands(all map[string]script.Cmd, printer shell.HivePrinter) map[string]script.Cmd {
	picked := map[string]script.Cmd{"help": script.Help()}
	for name, cmd := range all {
		first, _, _ := strings.Cut(name, "/")
		if first == "hive" || first == "db" && !slices.Contains(reading, name) || isEngines(name) {
			continue
		}
		picked[name] = guard{cmd}
	}
	if printer != nil {
		picked["hive"] = printCommand(printer)
	}
	return picked
}

// isEngines tells the names of the engine's own commands, which run programs and touch files.
func isEngines(name string) bool {
	_, found := script.DefaultCmds()[name]
	return found
}

// guard is a command without its dangerous flags.
type guard struct{ script.Cmd }

// Run refuses flags and passes the rest on.
func (g guard) Run(s *script.State, args ...string) (script.WaitFunc, error) {
	for _, name := range refused {
		if s.Flags != nil && s.Flags.Changed(name) {
			return nil, fmt.Errorf("the flag --%s cannot be used in the agent's shell", name)
		}
	}
	return g.Cmd.Run(s, args...)
}

func printCommand(printer shell.HivePrinter) script.Cmd {
	return script.Command(script.CmdUsage{Summary: "print the modules, their configuration and hooks"},
		func(s *script.State, _ ...string) (script.WaitFunc, error) { return nil, printer(s.LogWriter()) })
}
