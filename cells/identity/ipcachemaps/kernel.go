package ipcachemaps

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/pinnedmaps"
)

// kernel presents the two maps as one. Its implementation selects the map of a prefix.
type kernel interface {
	// Put creates or replaces an entry. Peer is an IPv4 address that programs of the previous release read instead of the node id.
	Put(prefix netip.Prefix, v value, peer netip.Addr) error
	// Delete removes an entry; a missing entry is not an error.
	Delete(prefix netip.Prefix) error
	// Get looks up the entry of exactly this prefix.
	Get(prefix netip.Prefix) (v value, found bool, err error)
	// Some reads the next n entries of each map. After the last entry it starts again with the first.
	Some(c *cursor, n int) (map[netip.Prefix]value, error)
	// RaiseAll makes the datapath evaluate established flows with all peers that are not local again, because the peers' identities may have changed. Raise does
	// the same for flows with peers whose addresses have these shards ([bpf.EpochShard]).
	RaiseAll() error
	Raise(shards []uint32) error
	// Dump reads all entries.
	Dump() (map[netip.Prefix]value, error)
}

// realKernel implements [kernel] with the pinned maps.
type realKernel struct{ maps pinnedmaps.PreviousLayouts }

func newKernel(m pinnedmaps.PreviousLayouts) kernel { return realKernel{m} }

// place returns the map of a prefix and the prefix's key in it.
func place(p netip.Prefix) (name string, key any) {
	if p.IsSingleIP() {
		return bpf.MapIpcache, bpf.NewAddrKey(p.Addr())
	}
	return bpf.MapIpcachePrefixes, bpf.NewLpmKey(p)
}

func (k realKernel) Put(p netip.Prefix, v value, peer netip.Addr) error {
	name, key := place(p)
	return k.maps.PutPrevious(name, key, bpf.IpcacheEntry{Identity: v.Identity, Node: v.Node}, bpf.PreviousIpcacheEntry(v.Identity, peer))
}

func (k realKernel) Delete(p netip.Prefix) error {
	name, key := place(p)
	if err := k.maps.Delete(name, key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	return nil
}

func (k realKernel) RaiseAll() error { return k.raise(bpf.MapEpochs, bpf.EpochIPCache) }

func (k realKernel) Raise(shards []uint32) error {
	for _, shard := range shards {
		if err := k.raise(bpf.MapEpochShards, shard); err != nil {
			return err
		}
	}
	return nil
}

// raise increments one slot. Only this cell writes the slot.
func (k realKernel) raise(name string, slot uint32) error {
	m, err := k.maps.Get(name)
	if err != nil {
		return err
	}
	var epoch uint32
	if err := m.Lookup(slot, &epoch); err != nil {
		return fmt.Errorf("read map %s: %w", name, err)
	}
	return k.maps.Put(name, slot, epoch+1)
}

// batch is the number of entries that one call reads.
const batch = 4096

func (k realKernel) Dump() (map[netip.Prefix]value, error) {
	out := make(map[netip.Prefix]value)
	if err := dump(k.maps, bpf.MapIpcache, wholeAddress, out); err != nil {
		return nil, err
	}
	return out, dump(k.maps, bpf.MapIpcachePrefixes, bpf.PrefixOf, out)
}

// wholeAddress converts a key of the map ipcache to a prefix.
func wholeAddress(key bpf.AddrKey) netip.Prefix {
	addr := bpf.AddrOf(key)
	return netip.PrefixFrom(addr, addr.BitLen())
}

// dump adds the entries of one map to out.
func dump[K any](all pinnedmaps.Maps, name string, prefix func(K) netip.Prefix, out map[netip.Prefix]value) error {
	var c ebpf.MapBatchCursor
	for {
		end, err := some(all, name, &c, batch, prefix, out)
		if end || err != nil {
			return err
		}
	}
}
