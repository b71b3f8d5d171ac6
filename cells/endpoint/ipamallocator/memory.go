package ipamallocator

import (
	"net/netip"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// memory reads the addresses of waggle_host that a previous run announced in the cluster's objects of this node. It is for a node without a local record of
// them.
type memory struct {
	cell.In

	Agent       agentconfig.Agent
	Nodes       statedb.Table[*k8s.Node]
	CiliumNodes statedb.Table[*cilium.Node]
	Sources     statedb.Table[sources.Source]
}

// unread returns the reason why the objects cannot be read yet, empty when they can.
func (m memory) unread(txn statedb.ReadTxn, watch *statedb.WatchSet) string {
	source, _, changed, _ := m.Sources.GetWatch(txn, sources.ByTable("cilium-nodes"))
	if source.Usable() {
		return ""
	}
	watch.Add(changed)
	return "the CiliumNodes of the cluster, which may know the router address of the previous run"
}

// candidates lists the router and health addresses of a family, preferred ones first. They are not validated; the caller checks them against the range.
func (m memory) candidates(txn statedb.ReadTxn, family string) (routers, healths []netip.Addr) {
	if node, _, ok := m.CiliumNodes.Get(txn, cilium.NodeByName(m.Agent.NodeName)); ok {
		for _, a := range node.Addresses {
			if a.Type == ciliumv2.CiliumInternalIP {
				routers = appendParsed(routers, a.IP)
			}
		}
		healths = appendParsed(appendParsed(healths, node.HealthIPv4), node.HealthIPv6)
	}
	if node, _, ok := m.Nodes.Get(txn, k8s.NodeByName(m.Agent.NodeName)); ok {
		for _, prefix := range []string{"network.cilium.io/", "io.cilium.network."} {
			routers = appendParsed(routers, node.Annotations[prefix+family+"-cilium-host"])
			healths = appendParsed(healths, node.Annotations[prefix+family+"-health-ip"])
		}
	}
	return routers, healths
}

func appendParsed(list []netip.Addr, text string) []netip.Addr {
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return list
	}
	return append(list, addr)
}
