package cni

import (
	"net"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
)

// TestMissingRoutes_StopsWhenAllAreFound: CHECK searches the routes of the pod until it has found all of the result.
func TestMissingRoutes_StopsWhenAllAreFound(t *testing.T) {
	t.Parallel()
	prefix := func(text string) *net.IPNet {
		_, p, err := net.ParseCIDR(text)
		require.NoError(t, err)
		return p
	}
	gateway := net.ParseIP("10.9.0.1")
	want := []*types.Route{{Dst: *prefix("10.9.0.1/32")}, nil, {Dst: *prefix("0.0.0.0/0"), GW: gateway}}
	m := newMissingRoutes(want)
	require.True(t, m.found(netlink.Route{Dst: prefix("10.9.0.0/24")}))
	require.True(t, m.found(netlink.Route{Dst: prefix("10.9.0.1/32"), Gw: gateway}))
	require.True(t, m.found(netlink.Route{Dst: prefix("0.0.0.0/0"), Gw: net.ParseIP("10.9.0.2")}))
	require.Equal(t, []*types.Route{want[2]}, m.routes)
	require.False(t, m.found(netlink.Route{Dst: prefix("0.0.0.0/0"), Gw: gateway}))
	require.Empty(t, m.routes)
	require.NotNil(t, want[0], "the result is unchanged")
}
