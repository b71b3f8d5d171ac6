package masquerademaps

import (
	"net/netip"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/mapreconciler"
	"github.com/waggle-net/waggle/pkg/datapath/pinnedmaps"
	"github.com/waggle-net/waggle/pkg/tables/masquerade"
)

// kernel is the interface to the two maps.
type kernel struct {
	netdevs    mapreconciler.Entries[uint32, bpf.Netdev]
	exclusions mapreconciler.Entries[netip.Prefix, uint32]
}

func newKernel(m pinnedmaps.Maps) kernel {
	return kernel{
		netdevs: mapreconciler.Hash[uint32, uint32, bpf.Netdev, bpf.Netdev]{
			Maps: m, Name: bpf.MapNetdevs,
			Key: mapreconciler.Same[uint32], KeyOf: func(k uint32) (uint32, bool) { return k, true },
			Value: mapreconciler.Same[bpf.Netdev], ValueOf: mapreconciler.Same[bpf.Netdev],
		},
		exclusions: mapreconciler.Hash[netip.Prefix, bpf.LpmKey, uint32, uint32]{
			Maps: m, Name: bpf.MapUnmasqueraded,
			Key: bpf.NewLpmKey, KeyOf: func(k bpf.LpmKey) (netip.Prefix, bool) { return bpf.PrefixOf(k), true },
			Value: mapreconciler.Same[uint32], ValueOf: mapreconciler.Same[uint32],
		},
	}
}

// netdevEntry returns the map entry of a row.
func netdevEntry(n *masquerade.Netdev) (uint32, bpf.Netdev) {
	v := bpf.Netdev{Ipv4: bpf.IPv4Word(n.IPv4), Ipv6: bpf.IPv6Bytes(n.IPv6)}
	if n.MasqueradeIPv4 {
		v.Flags |= bpf.NetdevMasqueradeIPv4
	}
	if n.MasqueradeIPv6 {
		v.Flags |= bpf.NetdevMasqueradeIPv6
	}
	return uint32(n.Index), v
}

// exclusionEntry returns the map entry of a row.
func exclusionEntry(e *masquerade.Exclusion) (netip.Prefix, uint32) { return e.Prefix, 1 }
