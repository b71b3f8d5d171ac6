package clusternodes

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/tables/cilium"
)

// A pod's object without the label of its node names it by an address. Where several nodes claim that and may have the pod, none is its node.
func TestHostOf_OneOfSeveralIsNone(t *testing.T) {
	t.Parallel()
	shared, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	node := func(name string, spec bool, addr netip.Addr, cidrs ...string) Node {
		n := Node{Name: name, Addrs: []netip.Addr{addr}}
		for _, text := range cidrs {
			n.CIDRs = append(n.CIDRs, CIDR{netip.MustParsePrefix(text), spec})
		}
		return n
	}
	x := All{node("a", false, shared, "10.1.0.0/24", "10.2.0.0/24", "10.3.0.0/24"), node("b", false, shared, "10.2.0.0/24"),
		node("c", true, shared, "10.3.0.0/24"), node("d", false, other)}.Index()
	for _, c := range []struct {
		node       netip.Addr
		host, addr string
		want       string
		found      bool
	}{
		{shared, "", "10.1.0.7", "a", true},
		{shared, "", "10.2.0.7", "", true},
		{shared, "b", "10.2.0.7", "b", true},
		{shared, "", "10.3.0.7", "c", true}, // it stands in its Node
		{shared, "a", "10.3.0.7", "", false},
		{other, "", "10.1.0.7", "", false},
		{netip.Addr{}, "", "10.1.0.7", "", false},
	} {
		name, found := x.HostOf(cilium.NewEndpoint(cilium.EndpointFields{Node: c.node, Host: c.host}), netip.MustParseAddr(c.addr))
		require.Equal(t, c.want, name, "%+v", c)
		require.Equal(t, c.found, found, "%+v", c)
	}
}
