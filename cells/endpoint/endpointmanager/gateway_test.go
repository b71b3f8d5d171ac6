package endpointmanager

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/tables/localnode"
)

func (r *rig) setNode(t testing.TB, prefix, router string) {
	t.Helper()
	txn := r.db.WriteTxn(r.nodes)
	defer txn.Abort()
	_, _, err := r.nodes.Insert(txn, &localnode.LocalNode{Name: "one",
		IPv4: localnode.Family{AllocRange: netip.MustParsePrefix(prefix), Router: netip.MustParseAddr(router)}})
	require.NoError(t, err)
	txn.Commit()
}

// The router address that a pod uses as gateway is stored with its endpoint, across restarts and changes of the node's range.
func TestCreate_StoresGateway(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := started(t, dir)
	r.setNode(t, "10.0.0.0/24", "10.0.0.200")
	ep, err := r.Create(t.Context(), request(1))
	require.NoError(t, err)
	require.Equal(t, "10.0.0.200", ep.GatewayIPv4.String())
	require.False(t, ep.GatewayIPv6.IsValid(), "no router of this family is known")

	r.setNode(t, "10.7.0.0/24", "10.7.0.1")
	ep, err = r.Create(t.Context(), request(2))
	require.NoError(t, err)
	require.False(t, ep.GatewayIPv4.IsValid(), "its address is not of the node's range")

	r = started(t, dir)
	require.Equal(t, "10.0.0.200", r.rows()[0].GatewayIPv4.String())
}
