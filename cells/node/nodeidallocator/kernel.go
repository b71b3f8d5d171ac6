package nodeidallocator

import (
	"errors"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/pinnedmaps"
)

// kernel reads the ids in BPF maps.
type kernel interface {
	// Named returns the ids in the entries of ipcache.
	Named() (map[uint16]bool, error)
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
