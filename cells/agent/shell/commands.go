package shell

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/hive/script"

	"github.com/waggle-net/waggle/pkg/shellwire"
)

// reading are the read-only commands of statedb. Other commands of statedb, including commands of newer versions, are not available.
var reading = []string{"db", "db/show", "db/get", "db/list", "db/prefix", "db/lowerbound", "db/watch", "db/initialized", "db/dump"}

// rejectedFlags are the rejected flags of allowed commands: out writes a file, delete removes rows.
var rejectedFlags = []string{"out", "delete"}

// commands returns the commands of the agent that operators may run.
func commands(all map[string]script.Cmd, printer shellwire.HivePrinter) map[string]script.Cmd {
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

// isEngines reports whether a command belongs to the script engine. These commands run programs and access files.
func isEngines(name string) bool {
	_, found := script.DefaultCmds()[name]
	return found
}

// guard is a command without the flags in rejectedFlags.
type guard struct{ script.Cmd }

// Run returns an error for a rejected flag, and otherwise runs the command.
func (g guard) Run(s *script.State, args ...string) (script.WaitFunc, error) {
	for _, name := range rejectedFlags {
		if s.Flags != nil && s.Flags.Changed(name) {
			return nil, fmt.Errorf("the flag --%s cannot be used in the agent's shell", name)
		}
	}
	return g.Cmd.Run(s, args...)
}

func printCommand(printer shellwire.HivePrinter) script.Cmd {
	return script.Command(script.CmdUsage{Summary: "print the modules, their configuration and hooks"},
		func(s *script.State, _ ...string) (script.WaitFunc, error) { return nil, printer(s.LogWriter()) })
}
