//go:build amd64

package node_test

import (
	"fmt"
	"testing"
)

// Every call of the plugin and of the agent that changes state during ADD and DEL fails once with each of some errors. A command that succeeds has done all of
// its work; after a failed command, DEL leaves nothing.
func TestPrivilegedModel_EveryCallFailsOnce(t *testing.T) {
	t.Parallel()
	kinds := []string{"ENOMEM", "EPERM", "EINTR", "EBUSY"}
	for _, who := range []string{"plugin", "agent"} {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			m := newModel(t)
			tried := 0 // points; outside a soak each point fails with the next error
			for _, command := range []string{"add", "del"} {
				calls := m.count(t, who, command)
				for _, at := range points(t, calls) {
					tried++
					for i, errno := range kinds {
						if !soaks() && i != tried%len(kinds) {
							continue
						}
						steps := []step{{what: command, who: who, at: at, errno: errno}}
						if command == "del" {
							steps = append([]step{{what: "add"}}, steps...)
						}
						if err := m.sequence(t.Context(), steps); err != nil {
							t.Fatalf("%s=%q: %v", modelEnv, printSteps(steps), err)
						}
					}
				}
			}
		})
	}
}

// count returns the number of calls of an undisturbed command.
func (m *model) count(t *testing.T, who, command string) int {
	t.Helper()
	pod := newPod(t, m.node, "counted")
	follow := func(command string) int {
		stop, err := traceAgent(m.node, traceRule{})
		if err != nil {
			t.Fatal(err)
		}
		plugin, err := tracePlugin(m.node, pod, command, traceRule{})
		if err != nil {
			t.Fatal(err)
		}
		agent, err := stop()
		if err != nil {
			t.Fatal(fmt.Errorf("follow the agent: %w", err))
		}
		if who == "plugin" {
			return len(plugin.Calls)
		}
		return len(agent.Calls)
	}
	add, del := follow("ADD"), follow("DEL")
	if command == "add" {
		return add
	}
	return del
}
