package servicecontroller

import (
	"net/netip"
	"slices"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// rivals finds Services with conflicts: they name the same ClusterIP, external address or port of this node. Services that this node does not serve are
// included: a false conflict only moves a Service to the last portion. Each Service is read once, because the first pass writes nothing to the maps before
// rivals is complete.
type rivals struct {
	*world
	clusterIPs map[netip.Addr]*k8s.Service // the first Service that names the address
	external   map[netip.Addr]*k8s.Service
	ports      map[nodePort]*k8s.Service // of this node
	contested  map[string]bool           // by name: Services with a conflict
}

type nodePort struct {
	protocol string
	number   uint16
}

// rivals reads all Services.
func (c *controller) rivals(txn statedb.ReadTxn) *rivals {
	r := &rivals{world: c.world, clusterIPs: make(map[netip.Addr]*k8s.Service, c.KubernetesServices.NumObjects(txn)),
		external: map[netip.Addr]*k8s.Service{}, ports: map[nodePort]*k8s.Service{}, contested: map[string]bool{}}
	for s := range c.KubernetesServices.All(txn) {
		r.add(s)
	}
	for a, s := range r.external { // a ClusterIP has precedence over external addresses, so its own Service has no conflict
		if r.clusterIPs[a] != nil {
			r.contested[s.Key()] = true
		}
	}
	return r
}

// families returns the numbers of ClusterIPs of both families.
func (r *rivals) families() (ipv4, ipv6 int) {
	for a := range r.clusterIPs {
		if a.Is4() {
			ipv4++
		}
	}
	return ipv4, len(r.clusterIPs) - ipv4
}

// divide splits services into services without conflicts and the rest. Only the former may be committed before the rest is computed: otherwise the claimant
// that is computed first would own an address for a moment, with the id and the clients of the rightful owner. alone uses the memory of names.
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

// want reports whether another Service or a host port may claim an address. left is the service that releases the address.
func (r *rivals) want(a netip.Addr, left string) bool {
	other := func(s *k8s.Service) bool { return s != nil && s.Key() != left }
	return a.IsLoopback() || r.isOwn(a) || other(r.clusterIPs[a]) || other(r.external[a])
}

// add records the claims of a Service.
func (r *rivals) add(s *k8s.Service) {
	for _, a := range s.ClusterIPs {
		claims(r, r.clusterIPs, a, s)
		r.claimPorts(a, s)
	}
	for _, a := range slices.Concat(s.ExternalIPs, s.IngressIPs) {
		claims(r, r.external, a, s)
		if r.claimPorts(a, s); r.isOwn(a) {
			r.contested[s.Key()] = true // a host port may claim the address
		}
	}
	for i := range s.Ports {
		if p := &s.Ports[i]; p.NodePort != 0 {
			claims(r, r.ports, nodePort{p.Protocol, p.NodePort}, s)
		}
	}
}

// claimPorts records the ports of a Service at an address of this node, because node ports use the same addresses.
func (r *rivals) claimPorts(a netip.Addr, s *k8s.Service) {
	if !a.IsLoopback() && !r.isOwn(a) {
		return
	}
	for i := range s.Ports {
		claims(r, r.ports, nodePort{s.Ports[i].Protocol, s.Ports[i].Port}, s)
	}
}

// claims records that a Service names key, and its conflict with the first Service that names it.
func claims[K comparable](r *rivals, all map[K]*k8s.Service, key K, s *k8s.Service) {
	switch first := all[key]; first {
	case nil:
		all[key] = s
	case s:
	default:
		r.contested[first.Key()], r.contested[s.Key()] = true, true
	}
}
