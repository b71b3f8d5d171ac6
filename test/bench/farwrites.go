package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/agentclient"
	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/tables/desiredroutes"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/nodeslots"
	"github.com/waggle-net/waggle/pkg/tables/sources"
	"github.com/waggle-net/waggle/test/nodekit"
)

// written returns the times at which an agent last wrote each row of nodes to the kernel.
func (l *large) written(ctx context.Context) (times []time.Time, err error) {
	slots, err := agentclient.Rows[*nodeslots.Slot](ctx, l.agent, "node-slots")
	if err != nil {
		return nil, err
	}
	for _, row := range slots {
		times = append(times, row.Status.UpdatedAt)
	}
	entries, err := agentclient.Rows[*ipcache.Entry](ctx, l.agent, "ipcache")
	if err != nil {
		return nil, err
	}
	for _, row := range entries {
		if row.Node() != "" {
			times = append(times, row.GetStatus().UpdatedAt)
		}
	}
	routes, err := agentclient.Rows[*desiredroutes.Route](ctx, l.agent, "desired-routes")
	for _, row := range routes {
		times = append(times, row.Status.UpdatedAt)
	}
	return times, err
}

// fromRows returns the time from the synchronization of the tables of node objects to the last kernel write of a derived row.
func (l *large) fromRows(ctx context.Context) (time.Duration, error) {
	filled, err := agentclient.Rows[sources.Source](ctx, l.agent, "sources")
	if err != nil {
		return 0, err
	}
	var rows, done time.Time
	for _, source := range filled {
		if (source.Table == "k8s-nodes" || source.Table == "cilium-nodes") && source.Since.After(rows) {
			rows = source.Since
		}
	}
	written, err := l.written(ctx)
	for _, at := range written {
		if at.After(done) {
			done = at
		}
	}
	return done.Sub(rows), err
}

// writtenSince counts the rows that were written after a time.
func (l *large) writtenSince(ctx context.Context, since time.Time) (count int, err error) {
	written, err := l.written(ctx)
	for _, at := range written {
		if at.After(since) {
			count++
		}
	}
	return count, err
}

// writeAgain writes the map entries and routes of far nodes again, and returns the CPU time of these writes. It runs in the namespaces of the node.
func (m farMaps) writeAgain() (cpu time.Duration, routes int, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var writes []func() error
	again := func(in *ebpf.Map, key, value any) error {
		err := in.Lookup(key, value)
		writes = append(writes, func() error { return in.Put(key, value) })
		return err
	}
	for n := farNode(1); n <= farNodes; n++ {
		key := bpf.NewAddrKey(n.addr(0))
		var owner bpf.NodeAddr
		if err := again(m.addrs, key, &owner); err != nil {
			return 0, 0, fmt.Errorf("look up the address of %s: %w", n.name(), err)
		}
		if err := again(m.nodes, uint32(owner.Node), new(bpf.Node)); err != nil {
			return 0, 0, fmt.Errorf("look up the slot of %s: %w", n.name(), err)
		}
		for _, addr := range []netip.Addr{n.addr(0), n.inner(1)} {
			if err := again(m.ipcache, bpf.NewAddrKey(addr), new(bpf.IpcacheEntry)); err != nil {
				return 0, 0, fmt.Errorf("look up %s in ipcache: %w", addr, err)
			}
		}
		if err := again(m.ranges, bpf.NewLpmKey(n.podRange()), new(bpf.IpcacheEntry)); err != nil {
			return 0, 0, fmt.Errorf("look up %s in ipcache: %w", n.podRange(), err)
		}
	}
	link, err := netlink.LinkByName(podlink.HostDevice)
	if err != nil {
		return 0, 0, err
	}
	list, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{LinkIndex: link.Attrs().Index, Table: desiredroutes.MainTable},
		netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
	if err != nil {
		return 0, 0, err
	}
	for _, route := range list {
		writes = append(writes, func() error { return netlink.RouteReplace(&route) })
	}
	before := threadTime()
	for _, write := range writes {
		if err := write(); err != nil {
			return 0, 0, err
		}
	}
	return threadTime() - before, len(list), nil
}

// threadTime returns the CPU time of this thread.
func threadTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) // the kernel has this clock
	return time.Duration(t.Nano())
}

// datagrams sends datagrams from a place to one address after the other, each to another port, so that no flow is older than its address.
type datagrams struct {
	conn *net.UDPConn
	stop func()

	mu     sync.Mutex // guards target
	target netip.Addr
}

func startDatagrams(from nodekit.NetNS) (*datagrams, error) {
	d := &datagrams{}
	if err := nodekit.Bind(from, func() (err error) {
		d.conn, err = net.ListenUDP("udp4", nil)
		return err
	}); err != nil {
		return nil, err
	}
	d.stop = sync.OnceFunc(func() { _ = d.conn.Close() })
	go d.run()
	return d, nil
}

// to changes the address; an invalid address stops the sending.
func (d *datagrams) to(addr netip.Addr) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.target = addr
}

// run sends a datagram every millisecond until the socket is closed.
func (d *datagrams) run() {
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for port := uint16(1024); ; port = max(port+1, 1024) {
		<-ticker.C
		d.mu.Lock()
		target := d.target
		d.mu.Unlock()
		if !target.IsValid() {
			continue
		}
		if _, err := d.conn.WriteToUDPAddrPort([]byte{0}, netip.AddrPortFrom(target, port)); errors.Is(err, net.ErrClosed) {
			return // other errors mean that the address is not reachable yet
		}
	}
}
