package ipam

import (
	"net/netip"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/ciliumv2"
	agent "github.com/waggle-net/waggle/pkg/settings"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// memory is what the cluster remembers of this node when the node itself has forgotten: the addresses of waggle_host that
// an earlier run announced.
type memory struct {
	cell.In

	Agent       agent.Agent
	Nodes       statedb.Table[*k8s.Node]
	CiliumNodes statedb.Table[*cilium.Node]
	Sources     statedb.Table[sources.Source]
}

// unread says why the cluster cannot be asked yet; empty when it can.
func (m memory) unread(txn statedb.ReadTxn, watch *statedb.WatchSet) string {
	source, _, changed, _ := m.Sources.GetWatch(txn, sources.ByTable("cilium-nodes"))
	if source.Usable() {
		return ""
	}
	watch.Add(changed)
	return "the CiliumNodes of the cluster, which may know the router address of an earlier run"
}

// of lists the router's and the health addresses of a family, best first. They may be nonsense: the range decides.
func (m memory) of(txn statedb.ReadTxn, family string) (routers, healths []netip.Addr) {
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
