package mtu

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/rows"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/mtus"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// settle is the minimum interval between two computations. A single change is not delayed.
const settle = 50 * time.Millisecond

// fallback is the MTU when no device has one.
const fallback = 1500

// detectedLimit is the largest MTU that is taken from a device, as in Cilium: the loopback device of a single node has 65536.
const detectedLimit = 65520

type controller struct {
	cell.In
	DB        *statedb.DB
	MTUs      statedb.RWTable[mtus.MTU]
	Devices   statedb.Table[*devices.Device]
	Addresses statedb.Table[devices.Address]
	Routes    statedb.Table[*devices.Route]
	LocalNode statedb.Table[*localnode.LocalNode]
	Settings  settings
}

func registerController(jobs job.Group, c controller) {
	txn := c.DB.WriteTxn(c.MTUs)
	done := c.MTUs.RegisterInitializer(txn, "mtu")
	txn.Commit()
	watchdog.AddRetried(jobs, "compute-mtu", func(ctx context.Context, health cell.Health) error {
		return c.run(ctx, health, done)
	}, 100*time.Millisecond, time.Minute)
}

func (c *controller) run(ctx context.Context, health cell.Health, done func(statedb.WriteTxn)) error {
	// A round before the devices are known would delay the first row by the pause.
	known := func(r *loop.Round) bool { return r.Complete(c.Devices) }
	if c.Settings.flag == 0 && !loop.Await(ctx, c.DB, loop.Options{}, known) {
		return nil
	}
	watched := []statedb.TableMeta{c.Devices, c.Addresses, c.LocalNode, c.Routes}
	return loop.Run(ctx, c.DB, loop.Options{Tables: watched, Pause: settle}, func(r *loop.Round) error {
		r.Watch(watched...)
		row, small := c.compute(r.Txn)
		if err := c.commit(row, done); err != nil {
			return err
		}
		if small != nil {
			health.Degraded("the MTU of a device is too small", small)
			return nil
		}
		health.OK("MTU is known")
		return nil
	})
}

// compute returns the row. The device with the node's address gives the MTU, because packets of pods leave the node through this device. The device of the
// default route is the second choice and provisional until the local node is ready; the fallback is always provisional. A device with a smaller MTU than pods may
// have counts as one with the minimum and causes an error beside the row: the node fragments, or rejects with ICMP, what does not fit.
func (c *controller) compute(txn statedb.ReadTxn) (mtus.MTU, error) {
	row := func(mtu int, source string, provisional bool) mtus.MTU {
		// The route MTU is not reduced below 1280, which IPv6 requires of a link; outer packets are then fragmented.
		return mtus.MTU{Prefix: mtus.Default, DeviceMTU: mtu, RouteMTU: max(mtu-c.Settings.overhead, min(mtu, smallest)), Source: source, Provisional: provisional}
	}
	if c.Settings.flag != 0 {
		return row(c.Settings.flag, "flag", false), nil
	}
	for _, by := range []struct {
		index       int
		provisional bool
	}{{c.withNodeIP(txn), false}, {c.withDefaultRoute(txn), !c.nodeIsReady(txn)}} {
		if d, _, found := c.Devices.Get(txn, devices.ByIndex(by.index)); found && d.MTU > 0 {
			var small error
			if d.MTU < smallest {
				small = fmt.Errorf("device %s has an MTU of %d bytes, less than the %d of pods: packets between nodes are fragmented or rejected; raise it to %d or more",
					d.Name, d.MTU, smallest, smallest+c.Settings.overhead)
			}
			return row(max(min(d.MTU, detectedLimit), smallest), d.Name, by.provisional), small
		}
	}
	return row(fallback, "default", true), nil
}

func (c *controller) nodeIsReady(txn statedb.ReadTxn) bool {
	for n := range c.LocalNode.All(txn) {
		return n.Ready
	}
	return false
}

// withNodeIP returns the index of the device with the node's IPv4 address, or else with the IPv6 address; 0 when there is none.
func (c *controller) withNodeIP(txn statedb.ReadTxn) int {
	for n := range c.LocalNode.All(txn) {
		for _, ip := range []netip.Addr{n.IPv4.NodeIP, n.IPv6.NodeIP} {
			for a := range c.Addresses.All(txn) {
				if ip.IsValid() && a.Addr() == ip {
					return a.LinkIndex
				}
			}
		}
	}
	return 0
}

// withDefaultRoute returns the index of the device of the default route with the lowest metric, IPv4 before IPv6; 0 when there is none.
func (c *controller) withDefaultRoute(txn statedb.ReadTxn) int {
	for _, dst := range []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)} {
		var best *devices.Route
		for r := range c.Routes.Prefix(txn, devices.RouteByID(fmt.Sprintf("%d/%s/", mainTable, dst))) {
			if r.LinkIndex != 0 && (best == nil || r.Priority < best.Priority) {
				best = r
			}
		}
		if best != nil {
			return best.LinkIndex
		}
	}
	return 0
}

// mainTable is RT_TABLE_MAIN.
const mainTable = 254

func (c *controller) commit(want mtus.MTU, done func(statedb.WriteTxn)) error {
	txn := c.DB.WriteTxn(c.MTUs)
	defer txn.Abort()
	if err := rows.Put(txn, c.MTUs, mtus.ByPrefix(mtus.Default), want, rows.Identical); err != nil {
		return err
	}
	done(txn)
	txn.Commit()
	return nil
}
