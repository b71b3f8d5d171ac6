package services

import (
	"net/netip"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// rivals counts who names what, in all Services, whether they turn out to be ours or not: one too many costs a portion and nothing else.
type rivals struct {
	*world
	clusterIPs map[netip.Addr]int32
	external   map[netip.Addr]int32
	ports      map[nodePort]int32 // of this node
}

type nodePort struct {
	protocol string
	number   uint16
}

// uncontested puts at the beginning of the list the services that contend with nobody for anything, and tells how many they are. Only these may be
// committed before the rest is known: of two who claim an address the one that comes first would have it for a moment, and with it the id
// and the clients of the other.
func (c *controller) uncontested(txn statedb.ReadTxn) int {
	r := rivals{world: c.world, clusterIPs: make(map[netip.Addr]int32, c.KubernetesServices.NumObjects(txn)),
		external: map[netip.Addr]int32{}, ports: map[nodePort]int32{}}
	for s := range c.KubernetesServices.All(txn) {
		r.count(s)
	}
	contested := map[string]bool{}
	for s := range c.KubernetesServices.All(txn) {
		if r.contests(s) {
			contested[s.Key()] = true
		}
	}
	alone, rest := c.queue[:0], []string(nil)
	for _, name := range c.queue {
		if _, host := hostPortPod(name); host || contested[name] {
			rest = append(rest, name)
		} else {
			alone = append(alone, name)
		}
	}
	c.queue = append(alone, rest...)
	return len(alone)
}

func (r *rivals) count(s *k8s.Service) {
	for _, a := range s.ClusterIPs {
		r.clusterIPs[a]++
		if !r.isOwn(a) && !a.IsLoopback() {
			continue
		}
		for i := range s.Ports { // it has them before any node port
			r.ports[nodePort{s.Ports[i].Protocol, s.Ports[i].Port}]++
		}
	}
	for _, list := range [][]netip.Addr{s.ExternalIPs, s.IngressIPs} {
		for _, a := range list {
			r.external[a]++
		}
	}
	for i := range s.Ports {
		if p := &s.Ports[i]; p.NodePort != 0 {
			r.ports[nodePort{p.Protocol, p.NodePort}]++
		}
	}
}

// contests tells whether somebody else may claim what a Service claims. A ClusterIP is lost to nobody but another one.
func (r *rivals) contests(s *k8s.Service) bool {
	for _, a := range s.ClusterIPs {
		if r.clusterIPs[a] > 1 {
			return true
		}
	}
	for _, list := range [][]netip.Addr{s.ExternalIPs, s.IngressIPs} {
		for _, a := range list {
			if r.external[a] > 1 || r.clusterIPs[a] > 0 {
				return true
			}
		}
	}
	for i := range s.Ports {
		if p := &s.Ports[i]; p.NodePort != 0 && r.ports[nodePort{p.Protocol, p.NodePort}] > 1 {
			return true
		}
	}
	return false
}
