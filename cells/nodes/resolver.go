package nodes

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/waggle-net/waggle/pkg/ciliumv2"
	"github.com/waggle-net/waggle/pkg/clusternodes"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	tables "github.com/waggle-net/waggle/pkg/tables/nodes"
)

// resolver finds the nodes that [resolve] must look at together: those whose claims meet, directly or through others. Nodes whose claims meet no claim of a node
// that changed keep their rows.
type resolver struct {
	claims  map[string][]netip.Prefix // by node, addresses as prefixes of full length, whether refused or not
	nodes   clusternodes.Names        // the same by prefix
	touched map[string]struct{}       // nodes that may have another row
}

func newResolver() *resolver {
	return &resolver{claims: map[string][]netip.Prefix{}, touched: map[string]struct{}{}}
}

// object is what describes a node.
type object struct {
	node   *k8s.Node            // nil without one
	cilium *cilium.Node         // nil without one
	local  *localnode.LocalNode // nil for other nodes
}

// replace takes over the object of a node, and touches the node and those that its claims met until now.
func (r *resolver) replace(name string, o object) {
	r.touched[name] = struct{}{}
	for _, p := range r.claims[name] {
		r.meet(p, func(other string) { r.touched[other] = struct{}{} })
	}
	for _, p := range r.claims[name] {
		r.nodes.Remove(p, name)
	}
	if delete(r.claims, name); o == (object{}) {
		return
	}
	r.claims[name] = claimsOf(o)
	for _, p := range r.claims[name] {
		r.nodes.Add(p, name)
	}
}

// meet calls do for the nodes with a claim that contains a prefix, or lies inside it.
func (r *resolver) meet(p netip.Prefix, do func(name string)) {
	for _, names := range r.nodes.Around(p) {
		for _, name := range names {
			do(name)
		}
	}
	for _, names := range r.nodes.Within(p) {
		for _, name := range names {
			do(name)
		}
	}
}

// together returns the nodes that were touched, and all those that their claims meet, directly or through others. When most were touched, as after a start, it
// returns all.
func (r *resolver) together() map[string]struct{} {
	found, queue := map[string]struct{}{}, []string(nil)
	if len(r.touched) > len(r.claims)/2 {
		maps.Copy(found, r.touched)
		for name := range r.claims {
			found[name] = struct{}{}
		}
		return found
	}
	add := func(name string) {
		if _, known := found[name]; !known {
			found[name] = struct{}{}
			queue = append(queue, name)
		}
	}
	for name := range r.touched {
		add(name)
	}
	for len(queue) > 0 {
		name := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		for _, p := range r.claims[name] {
			r.meet(p, add)
		}
	}
	return found
}

// claimsOf returns all that [resolve] could read of a node, in its order. It ends when a node has as many claims as it may.
func claimsOf(o object) (list []netip.Prefix) {
	claim := func(p netip.Prefix) {
		if p.IsValid() && !slices.Contains(list, p) {
			list = append(list, p)
		}
	}
	if o.local != nil {
		for _, f := range []localnode.Family{o.local.IPv4, o.local.IPv6} {
			claim(f.AllocRange.Masked())
			for _, addr := range []netip.Addr{f.NodeIP, f.Router, f.Health} {
				claim(clusternodes.Whole(addr))
			}
		}
		for _, addr := range o.local.Addresses {
			claim(clusternodes.Whole(addr))
		}
	}
	limit := len(list) + 2*maxClaims // those of the Node and those of the CiliumNode
	read := func(text string, whole bool) {
		if text == "" || len(list) >= limit {
			return
		}
		if p, ok := clusternodes.ParseRange(text); ok && !whole {
			claim(p)
		} else if addr, err := netip.ParseAddr(text); whole && err == nil && clusternodes.Usable(addr) {
			claim(clusternodes.Whole(addr))
		}
	}
	if o.node != nil {
		for _, text := range append([]string{o.node.PodCIDR}, o.node.PodCIDRs...) {
			read(text, false)
		}
		for _, a := range o.node.Addresses {
			if a.Type == tables.InternalIP || a.Type == tables.ExternalIP {
				read(a.Address, true)
			}
		}
	}
	if o.cilium == nil || o.local != nil {
		return list
	}
	for _, text := range o.cilium.PodCIDRs {
		read(text, false)
	}
	for _, p := range noted(o.cilium) {
		claim(p)
	}
	for _, a := range o.cilium.Addresses {
		if a.Type == ciliumv2.CiliumInternalIP || o.node == nil && (a.Type == tables.InternalIP || a.Type == tables.ExternalIP) {
			read(a.IP, true)
		}
	}
	for _, text := range []string{o.cilium.HealthIPv4, o.cilium.HealthIPv6} {
		read(text, true)
	}
	return list
}
