package servicecontroller

import (
	"net/netip"
	"net/url"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// portOf is a port at any address of a node.
type portOf struct {
	number   uint16
	protocol loadbalancer.Protocol
}

// reservedPorts returns the ports of a node on which the kubelet, kube-proxy's health check and the agent listen, with the names of their owners.
func reservedPorts(a agentconfig.Agent, listeners []agentconfig.Listener) map[portOf]string {
	all := map[portOf]string{
		{10250, loadbalancer.TCP}:        "the kubelet",
		{10256, loadbalancer.TCP}:        "the health check of the service proxy",
		{a.HealthPort, loadbalancer.TCP}: "--cluster-health-port",
		{a.TunnelPort, loadbalancer.UDP}: "--tunnel-port",
	}
	for _, l := range listeners {
		all[portOf{l.Port, loadbalancer.TCP}] = "--" + l.Flag
	}
	return all
}

// reserves returns the reason why an external IP must not use a port, or the empty string. The right to create Services suffices to name external IPs, and a
// process that listens on the node gets no connection to a port that a Service has there. Health check node ports are allocated in --node-port-range.
func (w *world) reserves(a loadbalancer.Address) string {
	switch owner := w.ports[portOf{a.Port, a.Protocol}]; {
	case w.apiServers[a]:
		return "belongs to the API server"
	case !w.isOwn(a.Addr):
		return ""
	case w.agent.NodePort(a.Port):
		return "lies in --node-port-range, which is reserved for NodePorts and health checks on this node"
	case owner != "":
		return "is the port of " + owner + " on this node"
	}
	return ""
}

// apiServersOf returns the addresses of API servers: the servers of the agent whose URL has an IP address, and the endpoints of [k8s.APIServerSlice].
func (in *inputs) apiServersOf(txn statedb.ReadTxn) map[loadbalancer.Address]bool {
	all := map[loadbalancer.Address]bool{}
	for s := range in.APIServers.All(txn) {
		u, err := url.Parse(s.Server)
		if err != nil {
			continue
		}
		host := u.Host
		if u.Port() == "" {
			host += ":443"
		}
		if at, err := netip.ParseAddrPort(host); err == nil {
			all[loadbalancer.Address{Addr: at.Addr().Unmap(), Port: at.Port(), Protocol: loadbalancer.TCP}] = true
		}
	}
	slice, _, found := in.Slices.Get(txn, k8s.APIServerSlice)
	if !found {
		return all
	}
	for i := range slice.Endpoints {
		for _, addr := range slice.Endpoints[i].Addrs {
			for j := range slice.Ports {
				if protocol, err := loadbalancer.ParseProtocol(slice.Ports[j].Protocol); err == nil {
					all[loadbalancer.Address{Addr: addr, Port: slice.Ports[j].Port, Protocol: protocol}] = true
				}
			}
		}
	}
	return all
}

// apiServerRevision returns the revisions of the table api-servers and of the slice that [inputs.apiServersOf] reads, 0 without the slice.
func (in *inputs) apiServerRevision(txn statedb.ReadTxn, changed *statedb.WatchSet) [2]statedb.Revision {
	_, more := in.APIServers.AllWatch(txn)
	changed.Add(more)
	_, revision, more, _ := in.Slices.GetWatch(txn, k8s.APIServerSlice)
	changed.Add(more)
	return [2]statedb.Revision{in.APIServers.Revision(txn), revision}
}
