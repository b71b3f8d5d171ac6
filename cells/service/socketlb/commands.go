package socketlb

import (
	"cmp"
	"fmt"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/script"

	"github.com/waggle-net/waggle/pkg/socketlboptions"
)

func newCommands(o socketlboptions.Options) upstream.ScriptCmdOut {
	return upstream.NewScriptCmd("socket-lb/options", script.Command(
		script.CmdUsage{Summary: "Print whether and for which sockets services are translated at the socket"},
		func(_ *script.State, args ...string) (script.WaitFunc, error) {
			if len(args) != 0 {
				return nil, script.ErrUsage
			}
			return func(*script.State) (string, string, error) { return describe(o), "", nil }, nil
		},
	))
}

func describe(o socketlboptions.Options) string {
	if !o.Enabled {
		return "services at the socket: no\n"
	}
	return fmt.Sprintf("services at the socket: yes\ncontrol group: %s\nsockets of pods: %s\nports of services may be bound: %s\n",
		cmp.Or(o.Cgroup, "/"), yesNo(!o.HostOnly), yesNo(!o.BindProtection))
}

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}
