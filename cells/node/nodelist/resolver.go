package nodelist

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/waggle-net/waggle/pkg/clusternodes"
	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// resolver finds the nodes that [resolve] must process together: nodes whose claims overlap, directly or through other nodes. A node whose claims overlap no
// claim of a changed node keeps its row.
type resolver struct {
	claims  map[string][]netip.Prefix // by node; addresses as full-length prefixes; includes refused claims
	nodes   clusternodes.Names        // the same claims by prefix
	touched map[string]struct{}       // nodes whose rows may change
}

func newResolver() *resolver {
	return &resolver{claims: map[string][]netip.Prefix{}, touched: map[string]struct{}{}}
}

// object holds the objects that describe a node.
type object struct {
	node   *k8s.Node            // nil without one
	cilium *cilium.Node         // nil without one
	local  *localnode.LocalNode // nil for other nodes

	retained *retained // nil without retained claims
}

// replace sets the object of a node, and touches the node and all nodes that its previous claims overlap.
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

// meet calls do for the nodes with a claim that contains a prefix or is inside it.
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

// together returns the touched nodes and all nodes whose claims overlap the claims of touched nodes, directly or through other nodes. When more than half of
// the nodes are touched, as after a start, it returns all nodes.
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

// claimsOf returns all claims that [resolve] could read for a node, in its order, up to the limit of claims.
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
	o.retained.each(claim)
	limit := len(list) + 2*maxClaims // for the Node and the CiliumNode
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
			if a.Type == nodes.InternalIP || a.Type == nodes.ExternalIP {
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
		if a.Type == ciliumv2.CiliumInternalIP || o.node == nil && (a.Type == nodes.InternalIP || a.Type == nodes.ExternalIP) {
			read(a.IP, true)
		}
	}
	for _, text := range []string{o.cilium.HealthIPv4, o.cilium.HealthIPv6} {
		read(text, true)
	}
	return list
}
