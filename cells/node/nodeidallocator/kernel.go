package nodeidallocator

import (
	"errors"
	"net/netip"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/pinnedmaps"
)

// kernel reads the ids in BPF maps.
type kernel interface {
	// Named returns the ids in the entries of ipcache.
	Named() (map[uint16]bool, error)
	// Addrs returns the addresses in node_addrs, with the ids of their nodes.
	Addrs() (map[netip.Addr]uint16, error)
}

// realKernel reads the pinned maps.
type realKernel struct{ maps pinnedmaps.Maps }

func newKernel(m pinnedmaps.Maps) kernel { return realKernel{m} }

func (k realKernel) Named() (map[uint16]bool, error) {
	named := map[uint16]bool{}
	return named, errors.Join(
		pinnedmaps.Each(k.maps, bpf.MapIpcache, func(_ bpf.AddrKey, e bpf.IpcacheEntry) { named[e.Node] = true }),
		pinnedmaps.Each(k.maps, bpf.MapIpcachePrefixes, func(_ bpf.LpmKey, e bpf.IpcacheEntry) { named[e.Node] = true }))
}

func (k realKernel) Addrs() (map[netip.Addr]uint16, error) {
	addrs := map[netip.Addr]uint16{}
	return addrs, pinnedmaps.Each(k.maps, bpf.MapNodeAddrs, func(key bpf.AddrKey, e bpf.NodeAddr) { addrs[bpf.AddrOf(key)] = e.Node })
}
