package liveness

import (
	"fmt"
	"strings"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/script"

	"github.com/waggle-net/waggle/pkg/watchdog"
)

// commands provides the command "liveness", which prints the verdict and the names of all loops.
func commands(m *watchdog.Monitor) upstream.ScriptCmdOut {
	return upstream.NewScriptCmd("liveness", script.Command(
		script.CmdUsage{Summary: "Print what hangs, and the names of all watched loops"},
		func(s *script.State, _ ...string) (script.WaitFunc, error) {
			return func(s *script.State) (stdout, stderr string, err error) {
				var out strings.Builder
				if line, live := m.Live(s.Context()); live {
					out.WriteString("nothing hangs\n")
				} else {
					out.WriteString(line + "\n")
				}
				for _, name := range m.Loops() {
					fmt.Fprintln(&out, name)
				}
				return out.String(), "", nil
			}, nil
		}))
}
