package clusternodes

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// row returns a row of the table nodes.
func row(name, addr string, cidrs ...string) *nodes.Node {
	n := &nodes.Node{Name: name}
	if addr != "" {
		n.Addresses = []nodes.Address{{Type: nodes.InternalIP, Addr: netip.MustParseAddr(addr)}}
	}
	for _, text := range cidrs {
		n.CIDRs = append(n.CIDRs, netip.MustParsePrefix(text))
	}
	return n
}

func indexOf(rows ...*nodes.Node) *Index {
	x := &Index{}
	for _, r := range rows {
		x.Replace(nil, r)
	}
	return x
}

func TestHostOf_LabelAndAddressMustAgree(t *testing.T) {
	t.Parallel()
	one, two := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	x := indexOf(row("a", "192.0.2.1"), row("b", "192.0.2.2"))
	for _, c := range []struct {
		node netip.Addr
		host string
		want string
	}{
		{one, "", "a"}, {one, "a", "a"}, {one, "b", ""}, {two, "b", "b"}, {netip.Addr{}, "b", "b"}, {netip.Addr{}, "", ""}, {netip.MustParseAddr("192.0.2.9"), "", ""},
		{netip.MustParseAddr("192.0.2.9"), "a", "a"},
	} {
		require.Equal(t, c.want, x.HostOf(cilium.NewEndpoint(cilium.EndpointFields{Node: c.node, Host: c.host})), "%+v", c)
	}
	x.Replace(nil, row("gone", "192.0.2.1"))
	require.Empty(t, x.HostOf(cilium.NewEndpoint(cilium.EndpointFields{Node: one})), "two rows have the address")
	require.Equal(t, "a", x.HostOf(cilium.NewEndpoint(cilium.EndpointFields{Node: one, Host: "a"})))
}
