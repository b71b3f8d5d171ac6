package synchostips

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	wagglehive "github.com/waggle-net/waggle/pkg/hive"
	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/testseed"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// kubernetes are the tables of objects, which scripts fill.
func kubernetes() cell.Cell {
	return cell.Provide(
		k8s.NewEndpointSliceTable, statedb.RWTable[*k8s.EndpointSlice].ToTable,
		nodes.NewTable, statedb.RWTable[*nodes.Node].ToTable,
	)
}

// contributions records the calls of the cell to the writers. One address may belong to an endpoint.
type contributions struct {
	mu     sync.Mutex
	hosts  []netip.Addr
	claims map[string][]ipcache.Claim // by owner
	whole  map[string]bool            // owners with a complete contribution
	taken  netip.Addr
}

func (c *contributions) ReplaceHost(_ string, addrs []netip.Addr) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hosts = slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return a == c.taken })
	if len(c.hosts) < len(addrs) {
		return errors.New("an endpoint has it")
	}
	return nil
}

func (c *contributions) Replace(owner string, claims []ipcache.Claim, complete bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.claims == nil {
		c.claims, c.whole = map[string][]ipcache.Claim{}, map[string]bool{}
	}
	c.claims[owner] = claims
	c.whole[owner] = c.whole[owner] || complete
}

func (c *contributions) Update(owner string, put []ipcache.Claim, remove []netip.Prefix, complete bool) {
	c.mu.Lock()
	have := slices.DeleteFunc(slices.Clone(c.claims[owner]), func(have ipcache.Claim) bool {
		return slices.Contains(remove, have.Prefix) || slices.ContainsFunc(put, func(p ipcache.Claim) bool { return p.Prefix == have.Prefix })
	})
	c.mu.Unlock()
	have = append(have, put...)
	slices.SortFunc(have, func(x, y ipcache.Claim) int { return x.Prefix.Compare(y.Prefix) })
	c.Replace(owner, have, complete)
}

func (c *contributions) command() hive.ScriptCmdOut {
	return hive.NewScriptCmd("contributed", script.Command(script.CmdUsage{Summary: "print contributed addresses and prefixes"},
		func(*script.State, ...string) (script.WaitFunc, error) {
			c.mu.Lock()
			defer c.mu.Unlock()
			var out strings.Builder
			for _, a := range c.hosts {
				fmt.Fprintln(&out, "host", a)
			}
			for _, owner := range slices.Sorted(maps.Keys(c.claims)) {
				for _, cl := range c.claims[owner] {
					fmt.Fprint(&out, cl.Prefix, " ", cl.Identity, " ", cl.Source)
					if cl.Node != "" {
						fmt.Fprint(&out, " of ", cl.Node)
					}
					fmt.Fprintln(&out)
				}
			}
			return func(*script.State) (string, string, error) { return out.String(), "", nil }, nil
		}))
}

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.RunVirtual(t, "testdata/*.txtar", func(testing.TB) []cell.Cell {
		c := &contributions{taken: netip.MustParseAddr("10.1.0.66")}
		return []cell.Cell{
			agentconfig.Cell, kubernetes(),
			cell.Provide(
				nodeaddresses.NewTable, localnode.NewTable, devices.NewRouteTable, statedb.RWTable[*devices.Route].ToTable,
				statedb.RWTable[nodeaddresses.Address].ToTable, statedb.RWTable[*localnode.LocalNode].ToTable,
				func() bpfendpoints.HostWriter { return c },
				func() ipcache.Writer { return c },
				c.command,
			),
			Cell,
		}
	})
}

// The cell contributes nothing before the addresses are complete: the maps of a previous run must not be emptied.
func TestController_WaitsForAllAddresses(t *testing.T) {
	t.Parallel()
	c := &contributions{}
	var db *statedb.DB
	var table statedb.RWTable[nodeaddresses.Address]
	var done func(statedb.WriteTxn)
	celltest.RunVirtual(t, "testdata/waits/*.txtar", func(testing.TB) []cell.Cell {
		return []cell.Cell{
			agentconfig.Cell, kubernetes(),
			cell.Provide(
				nodeaddresses.NewTable, localnode.NewTable, devices.NewRouteTable, statedb.RWTable[*devices.Route].ToTable,
				statedb.RWTable[nodeaddresses.Address].ToTable, statedb.RWTable[*localnode.LocalNode].ToTable,
				func() bpfendpoints.HostWriter { return c },
				func() ipcache.Writer { return c },
				c.command,
				func() hive.ScriptCmdOut {
					return hive.NewScriptCmd("complete", script.Command(script.CmdUsage{Summary: "complete node-addresses"},
						func(*script.State, ...string) (script.WaitFunc, error) {
							txn := db.WriteTxn(table)
							done(txn)
							txn.Commit()
							return nil, nil
						}))
				},
			),
			cell.Invoke(func(d *statedb.DB, rw statedb.RWTable[nodeaddresses.Address]) {
				db, table = d, rw
				txn := d.WriteTxn(rw)
				done = rw.RegisterInitializer(txn, "test")
				txn.Commit()
			}),
			Cell,
		}
	})
}

// started starts the cell until the test ends, after it has invoked more functions.
func started(t *testing.T, c *contributions, invoked ...any) {
	t.Helper()
	h := wagglehive.New(celltest.Infrastructure(), agentconfig.Cell, kubernetes(),
		cell.Provide(
			nodeaddresses.NewTable, localnode.NewTable, devices.NewRouteTable, statedb.RWTable[*devices.Route].ToTable,
			statedb.RWTable[nodeaddresses.Address].ToTable, statedb.RWTable[*localnode.LocalNode].ToTable,
			func() bpfendpoints.HostWriter { return c },
			func() ipcache.Writer { return c },
		),
		cell.Invoke(invoked...),
		Cell)
	log := hivetest.Logger(t, hivetest.LogLevel(slog.LevelWarn))
	if err := h.Start(log, t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Stop(log, context.Background()); err != nil {
			t.Error(err)
		}
	})
}

func insert[Row any](t *testing.T, db *statedb.DB, table statedb.RWTable[Row], row Row) {
	t.Helper()
	txn := db.WriteTxn(table)
	if _, _, err := table.Insert(txn, row); err != nil {
		t.Fatal(err)
	}
	txn.Commit()
}

// TestNodes_ServiceChange_IsNoStall: only the slice of the API servers wakes the loop, and a loop that does not
// observe a table that it registered for the watchdog ends the agent.
func TestNodes_ServiceChange_IsNoStall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var monitor *watchdog.Monitor
		var db *statedb.DB
		var table statedb.RWTable[*k8s.EndpointSlice]
		started(t, &contributions{}, func(m *watchdog.Monitor, d *statedb.DB, rw statedb.RWTable[*k8s.EndpointSlice]) {
			monitor, db, table = m, d, rw
		})
		for _, namespace := range []string{"default", "shop"} {
			insert(t, db, table, &k8s.EndpointSlice{Namespace: namespace, Name: "kubernetes"})
			time.Sleep(time.Second)
		}
		for range 120 {
			time.Sleep(watchdog.Interval)
			synctest.Wait()
			if stalls := monitor.Step(watchdog.Interval, db.ReadTxn()); len(stalls) > 0 {
				t.Fatalf("the agent would be restarted: %+v", stalls)
			}
		}
	})
}

// TestController_FollowsWithin20Milliseconds adds and removes addresses and routers of the node at random times.
func TestController_FollowsWithin20Milliseconds(t *testing.T) {
	t.Parallel()
	random := testseed.New(t)
	synctest.Test(t, func(t *testing.T) {
		c := &contributions{}
		var db *statedb.DB
		var addrs statedb.RWTable[nodeaddresses.Address]
		var local statedb.RWTable[*localnode.LocalNode]
		started(t, c, func(d *statedb.DB, a statedb.RWTable[nodeaddresses.Address], l statedb.RWTable[*localnode.LocalNode]) {
			db, addrs, local = d, a, l
		})
		hosts := func() []netip.Addr {
			synctest.Wait()
			c.mu.Lock()
			defer c.mu.Unlock()
			return slices.Clone(c.hosts)
		}
		change := func(do func(statedb.WriteTxn), want ...string) {
			t.Helper()
			time.Sleep(time.Duration(random.Int64N(int64(100 * time.Millisecond))))
			began := time.Now()
			txn := db.WriteTxn(addrs, local)
			do(txn)
			txn.Commit()
			var wanted []netip.Addr
			for _, text := range want {
				wanted = append(wanted, netip.MustParseAddr(text))
			}
			for !slices.Equal(hosts(), wanted) && time.Since(began) < 2*interval {
				time.Sleep(time.Millisecond)
			}
			if took := time.Since(began); took > pause {
				t.Errorf("%v after %v, want %v within %v", hosts(), took, wanted, pause)
			}
		}
		row := nodeaddresses.Address{Addr: netip.MustParseAddr("192.0.2.5"), Device: "eth0"}
		for range 20 {
			change(func(txn statedb.WriteTxn) { _, _, _ = addrs.Insert(txn, row) }, "192.0.2.5")
			change(func(txn statedb.WriteTxn) {
				_, _, _ = local.Insert(txn, &localnode.LocalNode{Name: "bee", IPv4: localnode.Family{Router: netip.MustParseAddr("10.1.0.1")}})
			}, "10.1.0.1", "192.0.2.5")
			change(func(txn statedb.WriteTxn) { _, _, _ = addrs.Delete(txn, row) }, "10.1.0.1")
			change(func(txn statedb.WriteTxn) { _ = local.DeleteAll(txn) })
		}
	})
}

// TestController_TriesAgainEachMinute: no event reports that an endpoint has released an address of the node.
func TestController_TriesAgainEachMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		addr := netip.MustParseAddr("192.0.2.5")
		c := &contributions{taken: addr}
		started(t, c, func(db *statedb.DB, table statedb.RWTable[nodeaddresses.Address]) {
			insert(t, db, table, nodeaddresses.Address{Addr: addr, Device: "eth0"})
		})
		has := func() bool {
			synctest.Wait()
			c.mu.Lock()
			defer c.mu.Unlock()
			return slices.Contains(c.hosts, addr)
		}
		time.Sleep(time.Second)
		if has() {
			t.Fatal("an endpoint has the address, and the host got it")
		}
		c.mu.Lock()
		c.taken = netip.Addr{}
		c.mu.Unlock()
		time.Sleep(interval - 2*time.Second)
		if has() {
			t.Error("tried again before a minute was over, without a change")
		}
		if time.Sleep(2 * time.Second); !has() {
			t.Error("not tried again after a minute")
		}
	})
}
