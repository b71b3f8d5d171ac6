package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/ctmap"
	"github.com/waggle-net/waggle/test/nodekit"
)

// conntrackCapacity measures how long a full conntrack table rejects new flows after some of its entries have expired.
func (b *bench) conntrackCapacity(ctx context.Context) error {
	const some = 1000 // entries that expire
	node, err := b.startNode(ctx, nodekit.Options{})
	if err != nil {
		return err
	}
	defer node.Close()
	client, err := node.AddPod(ctx, "client")
	if err != nil {
		return err
	}
	server, err := node.AddPod(ctx, "server") // both are removed with the node
	if err != nil {
		return err
	}
	for _, ipv6 := range []bool{false, true} {
		family, name, initiator := "IPv4", bpf.MapCtEst4, nodekit.OutsideIPv4.Addr()
		if ipv6 {
			family, name, initiator = "IPv6", bpf.MapCtEst6, nodekit.OutsideIPv6.Addr()
		}
		table, err := pinnedMap(node, name)
		if err != nil {
			return err
		}
		defer table.Close()
		at := netip.AddrPortFrom(server.Addr(ipv6), 7000)
		conn, err := responder(server, at)
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := occupy(table, initiator, int(table.MaxEntries()), time.Hour); err != nil {
			return err
		}
		requests := startRequests(client, at)
		defer requests.stop()
		var took []time.Duration
		for round := range b.atMost(10) {
			if err := requests.silent(ctx); err != nil {
				return fmt.Errorf("a full table: %w", err)
			}
			time.Sleep(time.Duration(round%5) * 100 * time.Millisecond) // at different phases of the collector's interval
			began := time.Now()
			if err := occupy(table, initiator, some, -2*time.Second); err != nil {
				return err
			}
			one, err := requests.replied(ctx, began)
			if err != nil {
				return fmt.Errorf("a table with %d expired entries: %w", some, err)
			}
			took = append(took, one)
			if err := occupy(table, initiator, int(table.MaxEntries()), time.Hour); err != nil {
				return err
			}
		}
		if err := requests.stop(); err != nil {
			return err
		}
		b.promised("a new "+family+" flow in a full conntrack table, after entries expired", took, capacityBudget)
	}
	return nil
}

// pinnedMap opens a map of the node's agent.
func pinnedMap(node *nodekit.Node, name string) (m *ebpf.Map, err error) {
	err = node.Do(func() error {
		m, err = ebpf.LoadPinnedMap(filepath.Join(node.BPFRoot(), "waggle", "maps", bpf.PinName(name, bpf.LayoutVersion(name))), nil)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open the map %s: %w", name, err)
	}
	return m, nil
}

// occupy writes n established flows of an initiator, or as many as fit into the table. An existing flow gets a new lifetime; a negative one means that the
// flow has expired.
func occupy(table *ebpf.Map, initiator netip.Addr, n int, lifetime time.Duration) error {
	now, err := bpf.CtNow()
	if err != nil {
		return err
	}
	var keys4 []bpf.CtKey4
	var keys6 []bpf.CtKey6
	entries := make([]bpf.CtEntry, n)
	for i := range n {
		responder := netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)})
		if initiator.Is6() {
			responder = netip.AddrFrom16([16]byte(binary.BigEndian.AppendUint64([]byte{0x20, 1, 0xd, 0xb8, 9, 9, 9, 9}, uint64(i))))
		}
		key, second := ctmap.KeyOf(bpf.CtFlow{Initiator: netip.AddrPortFrom(initiator, uint16(i>>16)+1), Responder: netip.AddrPortFrom(responder, 443),
			Protocol: unix.IPPROTO_TCP})
		entries[i] = bpf.CtEntry{Check: 1, Created: now, Expires: now + bpf.CtTicks(lifetime), Flags: bpf.CtEstablished}
		if second {
			entries[i].Flags |= bpf.CtInitiatorSecond
		}
		keys4, keys6 = append(keys4, key.V4), append(keys6, key.V6)
	}
	var keys any = keys4
	if initiator.Is6() {
		keys = keys6
	}
	if _, err := table.BatchUpdate(keys, entries, nil); err != nil && !errors.Is(err, unix.E2BIG) {
		return fmt.Errorf("write %d conntrack entries: %w", n, err)
	}
	return nil
}
