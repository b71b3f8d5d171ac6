package overlay

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/podpools"
	"github.com/waggle-net/waggle/pkg/rows"
	"github.com/waggle-net/waggle/pkg/tables/attachments"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/mtus"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/nodeslots"
	"github.com/waggle-net/waggle/pkg/tables/overlays"
	"github.com/waggle-net/waggle/pkg/tables/pathtests"
	"github.com/waggle-net/waggle/pkg/tables/sysctls"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

const (
	owner = ipcache.OwnerOverlay // of contributions to other tables
	// settle is the minimum interval between two reconciliation rounds.
	settle = 20 * time.Millisecond
	// shownProblems limits the problems in a health message.
	shownProblems = 3
)

type controller struct {
	cell.In
	DB          *statedb.DB
	Agent       agentconfig.Agent
	Table       statedb.RWTable[*overlays.Overlay]
	Nodes       statedb.Table[*nodes.Node]
	LocalNode   statedb.Table[*localnode.LocalNode]
	MTUs        statedb.Table[mtus.MTU]
	Devices     statedb.Table[*devices.Device]
	Attachments statedb.Table[*attachments.Attachment]
	Tests       statedb.Table[*pathtests.Test]
	Slots       statedb.Table[*nodeslots.Slot]
	Services    statedb.Table[*k8s.Service]
	IPCache     ipcache.Writer
	Sysctls     sysctls.Writer
	Probe       bpf.EncapProbe
	Pools       podpools.Pools
}

func registerController(jobs job.Group, c controller) {
	txn := c.DB.WriteTxn(c.Table)
	done := c.Table.RegisterInitializer(txn, owner)
	txn.Commit()
	var all *ranges // a retry continues where the previous attempt ended
	watchdog.AddRetried(jobs, "want-tunnel", func(ctx context.Context, health cell.Health) (err error) {
		if all == nil {
			if all, err = followRanges(c.DB, c.Agent, c.Nodes); err != nil {
				return err
			}
		}
		if !c.Agent.Tunnel() {
			return c.disable(ctx, health, all, done)
		}
		return c.run(ctx, health, all, done)
	}, 100*time.Millisecond, 5*time.Second) // it follows no tables while it waits for a retry
}

// disable requests no tunnel, so that the reconciler deletes the device of a previous run. The controller claims pod ranges of other nodes without a tunnel as
// well.
func (c *controller) disable(ctx context.Context, health cell.Health, all *ranges, done func(statedb.WriteTxn)) error {
	if err := errors.Join(c.Sysctls.Replace(owner, nil), c.commit(nil, done)); err != nil {
		return err
	}
	defer all.rows.Close()
	watched := []statedb.TableMeta{c.Nodes, c.LocalNode}
	return loop.Run(ctx, c.DB, loop.Options{Tables: watched, Pause: settle}, func(r *loop.Round) error {
		_, unclaimed := c.claim(r, c.self(r), all)
		health.OK("disabled: --routing-mode=" + agentconfig.RoutingNative + unclaimed)
		return nil
	})
}

// claim claims the pod ranges of other nodes and the cluster pool, as of a snapshot. It reports whether all nodes are known, and describes the CIDRs of the pool
// that are not claimed; empty without one.
func (c *controller) claim(r *loop.Round, self *localnode.LocalNode, all *ranges) (known bool, unclaimed string) {
	known = r.Complete(c.Nodes)
	ofPods, others := c.pool(r, self)
	put, remove := all.upTo(r.Txn, r.Changed, ofPods)
	c.IPCache.Update(owner, put, remove, known && len(ofPods)+len(others) == len(c.Pools)) // until then the claims of the previous run stay
	if len(others) > 0 {
		unclaimed = fmt.Sprintf("; not only of pods: %v of the cluster pool, with addresses of this node or of Services", others)
	}
	return known, unclaimed
}

// pool splits the CIDRs of the cluster pool as [podpools.Pools.Split] does. If another program serves Services, policies evaluate their addresses; the address of the API
// server's Service, which every cluster has, tells where they are.
func (c *controller) pool(r *loop.Round, self *localnode.LocalNode) (ofPods, others []netip.Prefix) {
	var services []netip.Addr
	if len(c.Pools) > 0 && !c.Agent.KubeProxyReplacement {
		s, found := loop.Get(r, c.Services, k8s.ServiceByName("default/kubernetes"))
		if !r.Complete(c.Services) {
			return nil, nil
		}
		if found {
			services = s.ClusterIPs
		}
	}
	return c.Pools.Split(self, r.Complete(c.LocalNode), services)
}

func (c *controller) run(ctx context.Context, health cell.Health, all *ranges, done func(statedb.WriteTxn)) error {
	watched := []statedb.TableMeta{c.Nodes, c.LocalNode} // of the other tables only single rows begin a round
	err := loop.Run(ctx, c.DB, loop.Options{Tables: watched, Pause: settle}, func(r *loop.Round) error {
		self := c.self(r)
		known, unclaimed := c.claim(r, self, all)
		want, exists := c.desired(r, self)
		pair := c.checksums(r, want)
		problems := all.problems()
		var waiting string
		source, err := outerSource(self, all.self, c.Agent.UnderlayIPv6)
		if want.Source = source; err != nil {
			problems, err = append(problems, err), nil
		}
		if c.Agent.EnableIPv4 && c.Agent.EnableIPv6 {
			want.Second, _ = outerSource(self, all.self, !c.Agent.UnderlayIPv6) // errors of the second family are ignored
		}

		switch {
		case !known && (all.self == nil || !all.self.Address(c.Agent.UnderlayIPv6).IsValid()): // until then the map may have an address from the previous run
			waiting = "waiting for the nodes of the cluster"
		case !want.Source.IsValid():
			waiting = "waiting for an " + c.Agent.Underlay() + " address of this node"
			if known && self.Ready && c.Table.NumObjects(r.Txn) == 0 { // an address may never appear, and the node's own pods need no tunnel
				err = c.commit(nil, done)
			}
		case !self.Ready: // without router addresses, Services could not send to backends on other nodes
			waiting = "waiting for the router addresses of this node"
		default:
			err = c.commit(want, done)
		}
		if exists { // the settings of a device exist only together with the device
			err = errors.Join(err, c.Sysctls.Replace(owner, desiredSysctls(c.Agent, pair)))
		}
		if err != nil {
			return err
		}
		report(health, waiting, all.reached, problems, c.Probe().String()+unclaimed)
		return nil
	})
	if err == nil {
		all.rows.Close()
	}
	return err
}

// self returns the row of this node, or a row without addresses if there is none.
func (c *controller) self(r *loop.Round) *localnode.LocalNode {
	for n := range loop.All(r, c.LocalNode) {
		return n
	}
	return &localnode.LocalNode{}
}

// desired computes the row without its source, and reports whether the device exists.
func (c *controller) desired(r *loop.Round, self *localnode.LocalNode) (want *overlays.Overlay, exists bool) {
	mtu, _ := loop.Get(r, c.MTUs, mtus.ByPrefix(mtus.Default))
	hook := attachments.Attachment{Kind: attachments.TCX, Device: podlink.OverlayDevice, Hook: "ingress"}
	program, found := loop.Get(r, c.Attachments, attachments.ByKey(hook.Key()))
	want = &overlays.Overlay{Device: podlink.OverlayDevice, Port: c.Agent.TunnelPort, MAC: macOf(c.Agent.NodeName), MTU: mtu.DeviceMTU, RouteMTU: mtu.RouteMTU,
		IPv4: self.IPv4.Router, IPv6: self.IPv6.Router}
	for d := range loop.List(r, c.Devices, devices.ByName(podlink.HostDevice)) {
		want.Way, want.HostMAC = d.Index, d.MAC
	}
	for d := range loop.List(r, c.Devices, devices.ByName(podlink.OverlayDevice)) {
		exists = true
		want.Up = found && program.Status.Kind == reconciler.StatusKindDone && program.IfIndex == d.Index
	}
	return want, exists
}

// checksums sets in a row whether a pair of devices completes checksums, and reports whether the pair exists. The pair stays until no slot of a node refers to
// it, because packets that programs send to a deleted device are lost.
func (c *controller) checksums(r *loop.Round, want *overlays.Overlay) (exists bool) {
	corrupted, corruptedChanged := pathtests.CorruptedPaths(r.Txn, c.Tests)
	r.Changed.Add(corruptedChanged)
	hook := attachments.Attachment{Kind: attachments.TCX, Device: podlink.ChecksumPeer, Hook: "ingress"}
	program, found := loop.Get(r, c.Attachments, attachments.ByKey(hook.Key()))
	for range loop.List(r, c.Devices, devices.ByName(podlink.ChecksumDevice)) {
		exists = true
	}
	want.Checksums = len(corrupted) > 0 || exists && c.completed(r)
	for d := range loop.List(r, c.Devices, devices.ByName(podlink.ChecksumPeer)) {
		want.ChecksumsUp = want.Checksums && found && program.Status.Kind == reconciler.StatusKindDone && program.IfIndex == d.Index
	}
	return exists
}

// completed reports whether slots of nodes may refer to the device that completes checksums.
func (c *controller) completed(r *loop.Round) bool {
	rows := loop.All(r, c.Slots)
	if !r.Complete(c.Slots) {
		return true
	}
	for row := range rows {
		if row.Checksums != 0 || row.Status.Kind != reconciler.StatusKindDone {
			return true
		}
	}
	return false
}

// commit inserts want; nil inserts no row. It opens no write transaction for an unchanged row: most rounds are about another node.
func (c *controller) commit(want *overlays.Overlay, done func(statedb.WriteTxn)) error {
	if c.has(want) {
		return nil
	}
	txn := c.DB.WriteTxn(c.Table)
	defer txn.Abort()
	if want != nil {
		if err := rows.Put(txn, c.Table, overlays.ByDevice(want.Device), want.WithStatus(reconciler.StatusPending()), rows.Same); err != nil {
			return err
		}
	}
	done(txn)
	txn.Commit()
	return nil
}

// has reports whether the table is complete and has the row, whatever its status. A complete table has nil.
func (c *controller) has(want *overlays.Overlay) bool {
	txn := c.DB.ReadTxn()
	if complete, _ := c.Table.Initialized(txn); !complete || want == nil {
		return complete
	}
	old, _, found := c.Table.Get(txn, overlays.ByDevice(want.Device))
	return found && old.Equal(want)
}

func report(health cell.Health, waiting string, reached int, problems []error, support string) {
	if waiting != "" {
		health.Degraded(waiting, errors.Join(problems...))
		return
	}
	if len(problems) > 0 {
		health.Degraded(fmt.Sprintf("%d pod ranges behind the tunnel, %d not; %s", reached, len(problems), support),
			errors.Join(problems[:min(len(problems), shownProblems)]...))
		return
	}
	health.OK(fmt.Sprintf("%d pod ranges behind the tunnel; %s", reached, support))
}
