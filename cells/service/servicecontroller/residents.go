package servicecontroller

import (
	"net/netip"
	"slices"

	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// residents are the addresses on this node, whatever slices contain: addresses of the node, of its endpoints and of its pods. Changes are applied one by one,
// so that a CNI ADD costs the same on a full node.
type residents struct {
	count     map[netip.Addr]int // number of owners of the address: the node, endpoints and pods
	own       []netip.Addr       // of the node
	endpoints map[uint16][]netip.Addr
	pods      map[string][]netip.Addr // by "namespace/name"
	before    map[netip.Addr]bool     // addresses changed since the last call of moved, and whether they were on this node then
}

func newResidents() residents {
	return residents{count: map[netip.Addr]int{}, endpoints: map[uint16][]netip.Addr{}, pods: map[string][]netip.Addr{}, before: map[netip.Addr]bool{}}
}

func (r *residents) has(addr netip.Addr) bool { return r.count[addr] > 0 }

// endpoint follows a change of an endpoint.
func (r *residents) endpoint(ep *endpoints.Endpoint, gone bool) {
	var now []netip.Addr
	for _, addr := range []netip.Addr{ep.IPv4, ep.IPv6} {
		if addr.IsValid() && !gone {
			now = append(now, addr)
		}
	}
	replace(r, r.endpoints, ep.ID, now)
}

// pod follows a change of a pod. A pod that has ended has no address.
func (r *residents) pod(p *k8s.Pod, gone bool) {
	now := p.PodIPs
	if gone || p.Ended() {
		now = nil
	}
	replace(r, r.pods, p.Key(), now)
}

// replace replaces the addresses of one endpoint or pod.
func replace[K comparable](r *residents, all map[K][]netip.Addr, key K, now []netip.Addr) {
	before := all[key]
	if slices.Equal(before, now) {
		return
	}
	if all[key] = now; len(now) == 0 {
		delete(all, key)
	}
	r.exchange(before, now)
}

func (r *residents) exchange(before, now []netip.Addr) {
	for _, addr := range now {
		r.add(addr, 1)
	}
	for _, addr := range before {
		r.add(addr, -1)
	}
}

func (r *residents) add(addr netip.Addr, n int) {
	if _, touched := r.before[addr]; !touched {
		r.before[addr] = r.has(addr)
	}
	if r.count[addr] += n; r.count[addr] == 0 {
		delete(r.count, addr)
	}
}

// moved sets the addresses of the node. It returns all addresses that were added to this node or removed from it since the last call.
func (r *residents) moved(own []netip.Addr) (list []netip.Addr) {
	if !slices.Equal(r.own, own) {
		r.exchange(r.own, own)
		r.own = own
	}
	for addr, before := range r.before {
		if before != r.has(addr) {
			list = append(list, addr)
		}
	}
	clear(r.before)
	return list
}
