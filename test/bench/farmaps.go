package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/test/nodekit"
)

// farMaps holds the agent's maps that contain far nodes and their pods.
type farMaps struct{ addrs, nodes, ipcache, ranges *ebpf.Map }

func openFarMaps(node *nodekit.Node) (m farMaps, err error) {
	for _, one := range []struct {
		to   **ebpf.Map
		name string
	}{{&m.addrs, bpf.MapNodeAddrs}, {&m.nodes, bpf.MapNodes}, {&m.ipcache, bpf.MapIpcache}, {&m.ranges, bpf.MapIpcachePrefixes}} {
		if *one.to, err = pinnedMap(node, one.name); err != nil {
			return m, errors.Join(err, m.Close())
		}
	}
	return m, nil
}

// Close closes the maps that are open.
func (m farMaps) Close() (err error) {
	for _, one := range []*ebpf.Map{m.addrs, m.nodes, m.ipcache, m.ranges} {
		if one != nil {
			err = errors.Join(err, one.Close())
		}
	}
	return err
}

// node reports whether the maps contain a node's address.
func (m farMaps) node(n farNode, turn int) bool {
	key := bpf.NewAddrKey(n.addr(turn))
	var owner bpf.NodeAddr
	var slot bpf.Node
	return m.addrs.Lookup(key, &owner) == nil && m.nodes.Lookup(uint32(owner.Node), &slot) == nil && slot.Underlay == key.Addr
}

// pod reports whether the maps contain the identity and the node of a pod.
func (m farMaps) pod(n farNode, number int) bool {
	var entry bpf.IpcacheEntry
	return m.ipcache.Lookup(bpf.NewAddrKey(n.podAddr(number)), &entry) == nil && entry.Identity != 0 && entry.Node != 0
}

func (m farMaps) await(ctx context.Context, last farNode) error {
	next := farNode(1)
	return await(ctx, 5*time.Millisecond, func() error {
		for ; next <= last; next++ {
			if !m.node(next, 0) {
				return fmt.Errorf("%s is not in the maps", next.name())
			}
		}
		return nil
	})
}

func (m farMaps) awaitPods(ctx context.Context, last farNode) error {
	next := farNode(1)
	return await(ctx, 20*time.Millisecond, func() error {
		for ; next <= last; next++ {
			for i := range farPodsOfNode {
				if !m.pod(next, i) {
					return fmt.Errorf("pod %s is not in the maps", next.podAddr(i))
				}
			}
		}
		return nil
	})
}
