package ipcache

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/bpfmaps"
)

// kernel is the two maps taken as one: which of them has a prefix is the business of this file.
type kernel interface {
	// Put writes an entry, whether it is there or not.
	Put(prefix netip.Prefix, v value) error
	// Delete removes an entry; one that is gone is success.
	Delete(prefix netip.Prefix) error
	// Dump reads all entries.
	Dump() (map[netip.Prefix]value, error)
}

// realKernel is the pinned maps.
type realKernel struct{ maps bpfmaps.Maps }

func newKernel(m bpfmaps.Maps) kernel { return realKernel{m} }

// place finds the map of a prefix and its key there.
func (k realKernel) place(p netip.Prefix) (m *ebpf.Map, key any, err error) {
	if p.IsSingleIP() {
		m, err = k.maps.Get(bpf.MapIpcache)
		return m, bpf.NewAddrKey(p.Addr()), err
	}
	m, err = k.maps.Get(bpf.MapIpcachePrefixes)
	return m, bpf.NewLpmKey(p), err
}

func (k realKernel) Put(p netip.Prefix, v value) error {
	m, key, err := k.place(p)
	if err != nil {
		return err
	}
	return m.Put(key, bpf.IpcacheEntry{Identity: v.Identity, TunnelPeer: bpf.IPv4Word(v.TunnelPeer)})
}

func (k realKernel) Delete(p netip.Prefix) error {
	m, key, err := k.place(p)
	if err != nil {
		return err
	}
	if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	return nil
}

func (k realKernel) Dump() (map[netip.Prefix]value, error) {
	out := make(map[netip.Prefix]value)
	err := dump(k.maps, bpf.MapIpcache, func(key bpf.AddrKey) netip.Prefix {
		addr := bpf.AddrOf(key)
		return netip.PrefixFrom(addr, addr.BitLen())
	}, out)
	if err != nil {
		return nil, err
	}
	return out, dump(k.maps, bpf.MapIpcachePrefixes, bpf.PrefixOf, out)
}

// dump adds the entries of one map to out. Keys that no prefix makes are left out: no packet can match them.
func dump[K any](all bpfmaps.Maps, name string, prefix func(K) netip.Prefix, out map[netip.Prefix]value) error {
	m, err := all.Get(name)
	if err != nil {
		return err
	}
	var (
		key   K
		entry bpf.IpcacheEntry
	)
	entries := m.Iterate()
	for entries.Next(&key, &entry) {
		if p := prefix(key); p.IsValid() {
			out[p] = value{entry.Identity, bpf.IPv4OfWord(entry.TunnelPeer)}
		}
	}
	if err := entries.Err(); err != nil {
		return fmt.Errorf("read map %s: %w", name, err)
	}
	return nil
}
