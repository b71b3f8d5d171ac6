package nodehealthprober

import (
	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/tables/nodehealth"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// pathsOf returns the rows of a node before the first probe, without disabled families. Self is the row of this node, nil while unknown: without its own
// address of a family, this node cannot reach any address of the family, which says nothing about other nodes.
func pathsOf(node, self *nodes.Node, agent agentconfig.Agent) (paths []*nodehealth.Path) {
	for _, kind := range []nodehealth.Kind{nodehealth.Host4, nodehealth.Host6, nodehealth.Health4, nodehealth.Health6} {
		ipv6 := kind == nodehealth.Host6 || kind == nodehealth.Health6
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
		p := &nodehealth.Path{Node: node.Name, UID: node.UID, Kind: kind, Addr: addr,
			ICMP: nodehealth.Check{State: nodehealth.Unknown}, HTTP: nodehealth.Check{State: nodehealth.Unknown}}
		if !canSend(self, kind, ipv6) {
			p.Unasked = "this node has no " + map[bool]string{false: "IPv4", true: "IPv6"}[ipv6] + " address"
		}
		paths = append(paths, p)
	}
	return paths
}

// canSend reports whether a node has a source address: its own address of the family, or for health addresses also the address of its device for pods.
func canSend(self *nodes.Node, kind nodehealth.Kind, ipv6 bool) bool {
	return self != nil && (self.Address(ipv6).IsValid() || kind.Endpoint() && self.Typed(nodes.CiliumInternalIP, ipv6).IsValid())
}
