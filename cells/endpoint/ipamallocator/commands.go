package ipamallocator

import (
	"github.com/cilium/hive"
	"github.com/cilium/hive/script"
)

func commandsOf(a *allocator) hive.ScriptCmdsOut {
	return hive.NewScriptCmds(map[string]script.Cmd{
		"ipam/dump": script.Command(
			script.CmdUsage{Summary: "Print the addresses that are not free, and the usage of the ranges"},
			func(*script.State, ...string) (script.WaitFunc, error) {
				return func(*script.State) (string, string, error) { return a.dump(), "", nil }, nil
			},
		),
	})
}
