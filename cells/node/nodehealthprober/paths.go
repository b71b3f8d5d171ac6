package nodehealthprober

import (
	"github.com/waggle-net/waggle/pkg/agentconfig"
	tables "github.com/waggle-net/waggle/pkg/tables/nodehealth"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// pathsOf returns the rows of a node before the first probe, without disabled families. Self is the row of this node, nil while unknown: without its own
// address of a family, this node cannot reach any address of the family, which says nothing about other nodes.
func pathsOf(node, self *nodes.Node, agent agentconfig.Agent) (paths []*tables.Path) {
	for _, kind := range []tables.Kind{tables.Host4, tables.Host6, tables.Health4, tables.Health6} {
		ipv6 := kind == tables.Host6 || kind == tables.Health6
		if ipv6 && !agent.EnableIPv6 || !ipv6 && !agent.EnableIPv4 || kind.Endpoint() && !agent.EndpointHealthChecking {
			continue
		}
		addr := node.Address(ipv6)
		if kind.Endpoint() {
			addr = node.Typed(nodes.HealthIP, ipv6)
		}
		if !addr.IsValid() {
			continue
		}
		p := &tables.Path{Node: node.Name, UID: node.UID, Kind: kind, Addr: addr,
			ICMP: tables.Check{State: tables.Unknown}, HTTP: tables.Check{State: tables.Unknown}}
		if !canSend(self, kind, ipv6) {
			p.Unasked = "this node has no " + map[bool]string{false: "IPv4", true: "IPv6"}[ipv6] + " address"
		}
		paths = append(paths, p)
	}
	return paths
}

// canSend reports whether a node has a source address: its own address of the family, or for health addresses also the address of its device for pods.
func canSend(self *nodes.Node, kind tables.Kind, ipv6 bool) bool {
	return self != nil && (self.Address(ipv6).IsValid() || kind.Endpoint() && self.Typed(nodes.CiliumInternalIP, ipv6).IsValid())
}
