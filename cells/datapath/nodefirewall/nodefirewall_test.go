package nodefirewall

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/datapath/nftforward"
	"github.com/waggle-net/waggle/pkg/drift"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
)

// fakeKernel has chains that drop all packets that leave through some devices.
type fakeKernel struct {
	mu      sync.Mutex
	dropped map[string]bool // by device
	invalid bool            // a chain drops invalid packets
	rules   int             // number of rules that a read returns
	fail    bool
	asked   []string // packets of the last read
	times   int
}

// Dropping implements kernel.
func (k *fakeKernel) Dropping(packets []nftforward.Packet) (chains []nftforward.Chain, read int, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.times++
	k.asked = nil
	if k.fail {
		return nil, 0, errors.New("netlink is broken")
	}
	for _, p := range packets {
		if p.Invalid {
			if k.invalid {
				chains = []nftforward.Chain{{Family: "inet", Table: "firewalld", Name: "filter_FORWARD"}}
			}
			continue
		}
		k.asked = append(k.asked, fmt.Sprintf("%s %s %s %#x", p.Source, p.In[:3], p.Out, p.InGroup))
		if k.dropped[p.Out] && !p.Source.Is6() {
			chains = []nftforward.Chain{{Family: "ip", Table: "filter", Name: "FORWARD"}}
		}
	}
	return chains, k.rules, nil
}

func (k *fakeKernel) commands() hive.ScriptCmdsOut {
	command := func(summary string, f func(args []string) (string, error)) script.Cmd {
		return script.Command(script.CmdUsage{Summary: summary}, func(_ *script.State, args ...string) (script.WaitFunc, error) {
			k.mu.Lock()
			defer k.mu.Unlock()
			text, err := f(args)
			return func(*script.State) (string, string, error) { return text, "", nil }, err
		})
	}
	return hive.NewScriptCmds(map[string]script.Cmd{
		"drop": command("drop what leaves by the devices", func(args []string) (string, error) {
			k.dropped = map[string]bool{}
			for _, name := range args {
				k.dropped[name] = true
			}
			return "", nil
		}),
		"drop-invalid": command("drop invalid packets, or no longer without an argument", func(args []string) (string, error) { k.invalid = len(args) > 0; return "", nil }),
		"fail":         command("let readings fail", func(args []string) (string, error) { k.fail = len(args) > 0; return "", nil }),
		"rules":        command("have so many rules", func(args []string) (_ string, err error) { k.rules, err = strconv.Atoi(args[0]); return "", err }),
		"packets":      command("print the packets of the last reading", func([]string) (string, error) { return strings.Join(k.asked, "\n") + "\n", nil }),
		"readings": command("print the number of readings, and begin with 0 again", func([]string) (string, error) {
			defer func() { k.times = 0 }()
			return fmt.Sprintln(k.times), nil
		}),
	})
}

func TestScripts(t *testing.T) {
	t.Parallel()
	for pattern, agent := range map[string]agentconfig.Agent{
		"testdata/*.txtar":        {KubeProxyReplacement: true},
		"testdata/hybrid/*.txtar": {KubeProxyReplacement: true, Hybrid: true},
		"testdata/device/*.txtar": {Hybrid: true},
	} {
		celltest.RunVirtual(t, pattern, func(testing.TB) []cell.Cell {
			return []cell.Cell{
				cell.Provide(
					devices.NewTable, statedb.RWTable[*devices.Device].ToTable, localnode.NewTable, statedb.RWTable[*localnode.LocalNode].ToTable,
					func() drift.Watch { return drift.Watch{Interval: 25 * time.Second} },
					func() agentconfig.Agent { return agent },
					func() *fakeKernel { return &fakeKernel{} },
					func(k *fakeKernel) kernel { return k },
					(*fakeKernel).commands,
				),
				cell.Module("node-firewall", "Node firewall", Watcher),
			}
		})
	}
}
