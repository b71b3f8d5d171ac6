package masquerade

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/bpfmaps"
	tables "github.com/waggle-net/waggle/pkg/tables/masquerade"
)

// kernel is the two maps.
type kernel struct {
	netdevs    entries[uint32, bpf.Netdev]
	exclusions entries[netip.Prefix, uint32]
}

// entries is one map.
type entries[K comparable, V comparable] interface {
	Put(key K, v V) error
	// Delete removes an entry; one that is gone is success.
	Delete(key K) error
	Dump() (map[K]V, error)
}

func newKernel(m bpfmaps.Maps) kernel {
	return kernel{
		netdevs: pinned[uint32, uint32, bpf.Netdev]{m, bpf.MapNetdevs,
			func(k uint32) uint32 { return k }, func(k uint32) uint32 { return k }},
		exclusions: pinned[netip.Prefix, bpf.LpmKey, uint32]{m, bpf.MapUnmasqueraded, bpf.NewLpmKey, bpf.PrefixOf},
	}
}

// pinned is a map of the agent, whose keys are KK for programs.
type pinned[K, KK, V comparable] struct {
	maps  bpfmaps.Maps
	name  string
	key   func(K) KK
	keyOf func(KK) K
}

// Put implements entries.
func (p pinned[K, KK, V]) Put(key K, v V) error { return p.maps.Put(p.name, p.key(key), v) }

// Delete implements entries.
func (p pinned[K, KK, V]) Delete(key K) error {
	if err := p.maps.Delete(p.name, p.key(key)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	return nil
}

// Dump implements entries.
func (p pinned[K, KK, V]) Dump() (map[K]V, error) {
	m, err := p.maps.Get(p.name)
	if err != nil {
		return nil, err
	}
	out := map[K]V{}
	var key KK
	var value V
	rows := m.Iterate()
	for rows.Next(&key, &value) {
		out[p.keyOf(key)] = value
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read map %s: %w", p.name, err)
	}
	return out, nil
}

// netdevEntry is a row as programs read it.
func netdevEntry(n *tables.Netdev) (uint32, bpf.Netdev) {
	v := bpf.Netdev{Ipv4: bpf.IPv4Word(n.IPv4), Ipv6: bpf.IPv6Bytes(n.IPv6)}
	if n.MasqueradeIPv4 {
		v.Flags |= bpf.NetdevMasqueradeIPv4
	}
	if n.MasqueradeIPv6 {
		v.Flags |= bpf.NetdevMasqueradeIPv6
	}
	return uint32(n.Index), v
}

// exclusionEntry is a row as programs read it.
func exclusionEntry(e *tables.Exclusion) (netip.Prefix, uint32) { return e.Prefix, 1 }
