package node_test

import (
	"testing"

	"github.com/waggle-net/waggle/test/nodekit"
)

// The uplink has no link header, like a WireGuard device: clients outside reach services, also on another node, and pods leave under the node's address.
func TestPrivilegedService_UplinkWithoutLinkHeader(t *testing.T) {
	t.Parallel()
	m := &serviceFixture{Node: newNode(t, nodekit.Options{Tunnel: true}), pods: map[string]*nodekit.Pod{}}
	m.start(t)
	m.routePublic(t)
	for _, g := range []serviceGroup{{"NodePort", (*serviceFixture).nodePort}, {"BackendOnOtherNode", (*serviceFixture).backendOnOtherNode}} {
		t.Run(g.name, func(t *testing.T) {
			defer m.empty(t)
			g.try(m, t, false)
		})
	}
	t.Run("SourceSeenOutside", func(t *testing.T) { m.sourceOutside(t, false) })
}
