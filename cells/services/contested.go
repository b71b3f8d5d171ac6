package services

import (
	"net/netip"
	"slices"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// rivals finds Services that claim the same, whether they turn out to be ours or not: one too many costs a portion and nothing else. Each
// Service is looked at once, because nothing is in the maps while this goes on.
type rivals struct {
	*world
	clusterIPs map[netip.Addr]*k8s.Service // who was the first to name it
	external   map[netip.Addr]*k8s.Service
	ports      map[nodePort]*k8s.Service // of this node
	contested  map[string]bool           // by name
}

type nodePort struct {
	protocol string
	number   uint16
}

// uncontested puts at the beginning of the list the services that contend with nobody for anything, and tells how many they are. Only these may be
// committed before the rest is known: of two who claim an address the one that comes first would have it for a moment, and with it the id
// and the clients of the other.
func (c *controller) uncontested(txn statedb.ReadTxn) int {
	r := rivals{world: c.world, clusterIPs: make(map[netip.Addr]*k8s.Service, c.KubernetesServices.NumObjects(txn)),
		external: map[netip.Addr]*k8s.Service{}, ports: map[nodePort]*k8s.Service{}, contested: map[string]bool{}}
	for s := range c.KubernetesServices.All(txn) {
		r.look(s)
	}
	for a, s := range r.external { // a ClusterIP is lost to nobody but another one
		if r.clusterIPs[a] != nil {
			r.contested[s.Key()] = true
		}
	}
	c.clusterIPs = make(map[netip.Addr]int, len(r.clusterIPs)) // it gets as many, and need not grow
	alone, rest := c.queue[:0], []string(nil)
	for _, name := range c.queue {
		if _, host := hostPortPod(name); host || r.contested[name] {
			rest = append(rest, name)
		} else {
			alone = append(alone, name)
		}
	}
	c.queue = append(alone, rest...)
	return len(alone)
}

func (r *rivals) look(s *k8s.Service) {
	for _, a := range s.ClusterIPs {
		claims(r, r.clusterIPs, a, s)
		r.here(a, s)
	}
	for _, a := range slices.Concat(s.ExternalIPs, s.IngressIPs) {
		claims(r, r.external, a, s)
		if r.here(a, s); r.isOwn(a) {
			r.contested[s.Key()] = true // a host port may have the address
		}
	}
	for i := range s.Ports {
		if p := &s.Ports[i]; p.NodePort != 0 {
			claims(r, r.ports, nodePort{p.Protocol, p.NodePort}, s)
		}
	}
}

// here notes the ports of a Service by an address that is the node's, where node ports are as well.
func (r *rivals) here(a netip.Addr, s *k8s.Service) {
	if !a.IsLoopback() && !r.isOwn(a) {
		return
	}
	for i := range s.Ports {
		claims(r, r.ports, nodePort{s.Ports[i].Protocol, s.Ports[i].Port}, s)
	}
}

// claims notes that a Service names something, and that it contends with the first who has done so.
func claims[K comparable](r *rivals, all map[K]*k8s.Service, key K, s *k8s.Service) {
	switch first := all[key]; first {
	case nil:
		all[key] = s
	case s:
	default:
		r.contested[first.Key()], r.contested[s.Key()] = true, true
	}
}
