package overlay

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/spf13/pflag"

	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/hive"
	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/tables/attachments"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/mtus"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// TestController_PodLinkChanges_AreNoStall: links and hooks of pods do not wake the controller, and the watchdog restarts the agent if a loop does not observe a
// change of a table that it registered.
func TestController_PodLinkChanges_AreNoStall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var monitor *watchdog.Monitor
		var db *statedb.DB
		var links statedb.RWTable[*devices.Device]
		var hooks statedb.RWTable[*attachments.Attachment]
		h := hive.New(append(underTest(), celltest.Infrastructure(), cell.Invoke(
			func(m *watchdog.Monitor, d *statedb.DB, l statedb.RWTable[*devices.Device], a statedb.RWTable[*attachments.Attachment],
				all statedb.RWTable[*nodes.Node], self statedb.RWTable[*localnode.LocalNode], limits statedb.RWTable[mtus.MTU]) {
				monitor, db, links, hooks = m, d, l, a
				txn := db.WriteTxn(all, self, limits)
				defer txn.Commit()
				addr := netip.MustParseAddr("192.0.2.1")
				_, _, _ = all.Insert(txn, &nodes.Node{Name: "one", Source: nodes.Local, Addresses: []nodes.Address{{Type: nodes.InternalIP, Addr: addr}}})
				_, _, _ = self.Insert(txn, &localnode.LocalNode{Name: "one", Addresses: []netip.Addr{addr}, Ready: true})
				_, _, _ = limits.Insert(txn, mtus.MTU{Prefix: mtus.Default, DeviceMTU: 1500, RouteMTU: 1450})
			}))...)
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		h.RegisterFlags(flags)
		log := hivetest.Logger(t, hivetest.LogLevel(slog.LevelWarn))
		if err := errors.Join(flags.Parse([]string{"--routing-mode=tunnel", "--node-name=one"}), h.Start(log, t.Context())); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := h.Stop(log, context.Background()); err != nil {
				t.Error(err)
			}
		})
		attach := func(kind attachments.Kind, index int, name, hook string) {
			txn := db.WriteTxn(links, hooks)
			defer txn.Commit()
			if _, _, found := links.Get(txn, devices.ByName(name)); !found {
				_, _, _ = links.Insert(txn, &devices.Device{Index: index, Name: name})
			}
			_, _, _ = hooks.Insert(txn, &attachments.Attachment{Kind: kind, Device: name, IfIndex: index, Hook: hook, Status: reconciler.StatusDone()})
		}
		time.Sleep(time.Second) // meanwhile the fake kernel creates the tunnel's device
		attach(attachments.TCX, 10, podlink.OverlayDevice, "ingress")
		attach(attachments.TCX, 2, podlink.HostDevice, "ingress")
		attach(attachments.PodLink, 99, "lxc9", "both") // the first name with this initial wakes all watchers, because it changes the root of the index
		for i := range 120 {
			if i == 10 {
				attach(attachments.PodLink, 100, "lxc0", "both")
			}
			time.Sleep(watchdog.Interval)
			synctest.Wait()
			if stalls := monitor.Step(watchdog.Interval, db.ReadTxn()); len(stalls) > 0 {
				t.Fatalf("the agent would be restarted: %+v", stalls)
			}
		}
	})
}
