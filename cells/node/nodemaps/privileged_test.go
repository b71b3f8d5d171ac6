package nodemaps

import (
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/tables/nodeslots"
	"github.com/waggle-net/waggle/pkg/testnet"
)

func TestPrivilegedKernel_SlotsAndAddresses(t *testing.T) {
	t.Parallel()
	testnet.RequirePrivileges(t)
	specs, err := bpf.MapSpecs()
	require.NoError(t, err)
	maps := celltest.Maps{}
	for _, name := range []string{bpf.MapNodes, bpf.MapNodeAddrs} {
		m, err := ebpf.NewMap(specs[name])
		require.NoError(t, err)
		t.Cleanup(func() { _ = m.Close() })
		maps[name] = m
	}
	k := newKernel(maps)
	addr := netip.MustParseAddr
	rows := []*nodeslots.Slot{
		{ID: 0, Addrs: []netip.Addr{addr("192.0.2.1"), addr("2001:db8::1")}},
		{ID: 2, Underlay: addr("192.0.2.2"), Source: addr("192.0.2.1"), Addrs: []netip.Addr{addr("192.0.2.2"), addr("2001:db8::2")}},
		{ID: 16383, Underlay: addr("2001:db8::3"), Source: addr("2001:db8::1"), Addrs: []netip.Addr{addr("2001:db8::3")}},
	}
	o := newOps(k)
	for range 2 { // the second run changes nothing
		for _, row := range rows {
			require.NoError(t, o.Update(t.Context(), nil, 0, row))
		}
		have, err := k.Dump()
		require.NoError(t, err)
		require.Len(t, have, len(rows))
		for _, row := range rows {
			require.Empty(t, o.differs(have, row), "%+v", have[row.ID])
		}
	}
	require.NoError(t, newOps(k).Prune(t.Context(), nil, func(yield func(*nodeslots.Slot, uint64) bool) { yield(rows[0], 0) }))
	for range 2 { // a missing entry is a success
		require.NoError(t, k.DeleteAddr(addr("2001:db8::2")))
	}
	have, err := k.Dump()
	require.NoError(t, err)
	require.Equal(t, map[uint16]state{0: {addrs: rows[0].Addrs}}, have)
}
