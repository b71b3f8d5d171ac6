package mapreconciler

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/pinnedmaps"
	"github.com/waggle-net/waggle/pkg/testnet"
)

// one provides a single kernel map.
type one struct {
	pinnedmaps.Maps
	m *ebpf.Map
}

func (o one) Get(string) (*ebpf.Map, error)  { return o.m, nil }
func (o one) Put(_ string, key, v any) error { return o.m.Put(key, v) }
func (o one) Delete(_ string, key any) error { return o.m.Delete(key) }

func newMap(t *testing.T, spec ebpf.MapSpec) one {
	m, err := ebpf.NewMap(&spec)
	require.NoError(t, err)
	t.Cleanup(func() { _ = m.Close() })
	return one{m: m}
}

// Both kinds of maps return more entries than one system call reads, and deleting a missing entry is no error.
func TestPrivilegedHash_DumpsAll(t *testing.T) {
	t.Parallel()
	testnet.RequirePrivileges(t)
	const n = 3*batch + 1
	numbers := Hash[uint32, uint32, uint16, uint32]{Name: "numbers",
		Maps: newMap(t, ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 4, MaxEntries: n}),
		Key:  Same[uint32], KeyOf: func(k uint32) (uint32, bool) { return k, k != 0 },
		Value: func(v uint16) uint32 { return uint32(v) }, ValueOf: func(v uint32) uint16 { return uint16(v) }}
	prefixes := Hash[netip.Prefix, bpf.LpmKey, uint32, uint32]{Name: "prefixes",
		Maps: newMap(t, ebpf.MapSpec{Type: ebpf.LPMTrie, KeySize: uint32(binary.Size(bpf.LpmKey{})), ValueSize: 4, MaxEntries: n, Flags: unix.BPF_F_NO_PREALLOC}),
		Key:  bpf.NewLpmKey, KeyOf: func(k bpf.LpmKey) (netip.Prefix, bool) { return bpf.PrefixOf(k), true },
		Value: Same[uint32], ValueOf: Same[uint32]}
	wantNumbers, wantPrefixes := map[uint32]uint16{}, map[netip.Prefix]uint32{}
	for i := range uint32(n) {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 32)
		if i%2 == 1 {
			p = netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, byte(i >> 16), byte(i >> 8), byte(i)}), 64)
		}
		require.NoError(t, numbers.Put(i, uint16(i)))
		require.NoError(t, prefixes.Put(p, i))
		if i != 0 { // key 0 belongs to no row
			wantNumbers[i] = uint16(i)
		}
		wantPrefixes[p] = i
	}
	gotNumbers, err := numbers.Dump()
	require.NoError(t, err)
	require.Equal(t, wantNumbers, gotNumbers)
	gotPrefixes, err := prefixes.Dump()
	require.NoError(t, err)
	require.Equal(t, wantPrefixes, gotPrefixes)

	require.NoError(t, numbers.Delete(7))
	require.NoError(t, numbers.Delete(7))
	gotNumbers, err = numbers.Dump()
	require.NoError(t, err)
	require.NotContains(t, gotNumbers, uint32(7))
}
