package basedevices

import (
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/cells/agent/driftledger"
	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/tables/desiredroutes"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/mtus"
	"github.com/waggle-net/waggle/pkg/tables/sysctls"
)

// contributions records the contributions of the cell to other tables. Routes become rows of desired-routes, pending until a script calls done.
type contributions struct {
	db     *statedb.DB
	routes statedb.RWTable[*desiredroutes.Route]

	mu       sync.Mutex
	expected []string
	settings map[string][]sysctls.Setting
}

func newContributions(db *statedb.DB, routes statedb.RWTable[*desiredroutes.Route]) *contributions {
	return &contributions{db: db, routes: routes, settings: map[string][]sysctls.Setting{}}
}

// Update is not called by the cell.
func (c *contributions) Update(string, []desiredroutes.Route, []desiredroutes.Route) error {
	return errors.ErrUnsupported
}

func (c *contributions) Expect(o string) { c.expected = append(c.expected, o) }

func (c *contributions) Replace(owner string, routes []desiredroutes.Route) error {
	txn := c.db.WriteTxn(c.routes)
	defer txn.Commit()
	before := statedb.Collect(c.routes.List(txn, desiredroutes.ByOwner(owner)))
	for _, row := range before {
		_, _, _ = c.routes.Delete(txn, row)
	}
	for _, r := range routes {
		r.Owner = owner
		row := r.WithStatus(reconciler.StatusPending())
		for _, old := range before {
			if old.Equal(row) {
				row.Status = old.Status
			}
		}
		_, _, _ = c.routes.Insert(txn, row)
	}
	return nil
}

// done sets the status of all routes to done.
func (c *contributions) done() {
	txn := c.db.WriteTxn(c.routes)
	defer txn.Commit()
	for row := range c.routes.All(txn) {
		_, _, _ = c.routes.Insert(txn, row.Clone().WithStatus(reconciler.StatusDone()))
	}
}

// settingsWriter implements the writer of settings, whose Replace has another signature than the writer of routes.
type settingsWriter struct{ *contributions }

func (w settingsWriter) Replace(owner string, settings []sysctls.Setting) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.settings[owner] = settings
	return nil
}

// Update changes single settings of an owner's recorded set.
func (w settingsWriter) Update(owner string, put []sysctls.Setting, remove []string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.settings[owner] = slices.DeleteFunc(slices.Clone(w.settings[owner]), func(s sysctls.Setting) bool {
		return slices.Contains(remove, s.Name) || slices.ContainsFunc(put, func(n sysctls.Setting) bool { return n.Name == s.Name })
	})
	w.settings[owner] = append(w.settings[owner], put...)
	return nil
}

func (c *contributions) print() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var lines []string
	for r := range c.routes.All(c.db.ReadTxn()) {
		line := strings.Join([]string{r.Owner, r.Dst.String(), "dev", r.Device, "src", r.Src.String()}, " ")
		if r.Metric != 0 {
			line += " metric " + strconv.Itoa(r.Metric)
		}
		lines = append(lines, line)
	}
	for owner, settings := range c.settings {
		for _, s := range settings {
			lines = append(lines, owner+" "+s.Name+" = "+s.Value)
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n") + "\n"
}

func (c *contributions) commands() hive.ScriptCmdsOut {
	return hive.NewScriptCmds(map[string]script.Cmd{
		"contributed": script.Command(script.CmdUsage{Summary: "print contributed routes and settings"},
			func(*script.State, ...string) (script.WaitFunc, error) {
				return func(*script.State) (string, string, error) { return c.print(), "", nil }, nil
			}),
		"routes/done": script.Command(script.CmdUsage{Summary: "the kernel has all contributed routes"},
			func(*script.State, ...string) (script.WaitFunc, error) { c.done(); return nil, nil }),
	})
}

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.RunVirtual(t, "testdata/*.txtar", func(testing.TB) []cell.Cell {
		return []cell.Cell{
			agentconfig.Cell,
			cell.Provide(
				devices.NewTable, devices.NewAddressTable, localnode.NewTable, mtus.NewTable, endpoints.NewTable,
				statedb.RWTable[*devices.Device].ToTable, statedb.RWTable[devices.Address].ToTable,
				statedb.RWTable[*localnode.LocalNode].ToTable, statedb.RWTable[mtus.MTU].ToTable,
				statedb.RWTable[*endpoints.Endpoint].ToTable,
				desiredroutes.NewTable, statedb.RWTable[*desiredroutes.Route].ToTable, newContributions,
				func(c *contributions) desiredroutes.Writer { return c },
				func(c *contributions) sysctls.Writer { return settingsWriter{c} },
				(*contributions).commands,
				newFakeKernel,
				func(k *fakeKernel) kernel { return k },
				(*fakeKernel).commands,
			),
			driftledger.Cell,
			cell.Module("base-devices", "Base devices", Reconciler),
		}
	})
}

// A localnode that is not ready must not remove a router address of the previous run.
func TestDesiredDevices_NodeNotReady_AddressesIncomplete(t *testing.T) {
	t.Parallel()
	router := netip.MustParseAddr("10.1.0.1")
	for name, c := range map[string]struct {
		node  *localnode.LocalNode
		addrs int
		known bool
	}{
		"no node yet":         {nil, 0, false},
		"waiting for IPv6":    {&localnode.LocalNode{IPv4: localnode.Family{Router: router}}, 1, false},
		"ready":               {&localnode.LocalNode{IPv4: localnode.Family{Router: router}, Ready: true}, 1, true},
		"ready without range": {&localnode.LocalNode{Ready: true}, 0, true},
	} {
		host := desiredDevices(c.node, 0, true)[0]
		if len(host.Addresses) != c.addrs || host.AddressesKnown != c.known {
			t.Errorf("%s: addresses %v, known %v", name, host.Addresses, host.AddressesKnown)
		}
	}
}
