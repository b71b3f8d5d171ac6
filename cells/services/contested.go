package services

import (
	"net/netip"
	"slices"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// rivals finds Services that claim the same, whether they turn out to be ours or not: one too many costs a portion and nothing else. Each
// Service is looked at once, because in the first pass nothing is in the maps while this goes on.
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

// rivals looks at all Services.
func (c *controller) rivals(txn statedb.ReadTxn) *rivals {
	r := &rivals{world: c.world, clusterIPs: make(map[netip.Addr]*k8s.Service, c.KubernetesServices.NumObjects(txn)),
		external: map[netip.Addr]*k8s.Service{}, ports: map[nodePort]*k8s.Service{}, contested: map[string]bool{}}
	for s := range c.KubernetesServices.All(txn) {
		r.look(s)
	}
	for a, s := range r.external { // a ClusterIP is lost to nobody but another one
		if r.clusterIPs[a] != nil {
			r.contested[s.Key()] = true
		}
	}
	return r
}

// divide divides services into those that contend with nobody for anything, and the rest. Only the first may be committed before the rest is known:
// of two who claim an address the one that comes first would have it for a moment, and with it the id and the clients of the other.
func (r *rivals) divide(names []string) (alone, rest []string) {
	alone = names[:0]
	for _, name := range names {
		if _, host := hostPortPod(name); host || r.contested[name] {
			rest = append(rest, name)
		} else {
			alone = append(alone, name)
		}
	}
	return alone, rest
}

// want reports whether another Service or a host port may claim an address that a service leaves.
func (r *rivals) want(a netip.Addr, left string) bool {
	other := func(s *k8s.Service) bool { return s != nil && s.Key() != left }
	return a.IsLoopback() || r.isOwn(a) || other(r.clusterIPs[a]) || other(r.external[a])
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
