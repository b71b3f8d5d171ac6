package endpointmaps

import (
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
)

// endpointOwner is the owner of rows of bpf-endpoints that come from endpoints.
const endpointOwner = "endpoint"

// desired has the desired rows of endpoints in the three tables.
type desired struct {
	facts     map[uint16]*bpfendpoints.Facts
	links     map[uint32]*bpfendpoints.Link
	addresses map[netip.Addr]*bpfendpoints.Address
	problems  []error // endpoints without rows, and the reasons
	// undecided are endpoints without a policy. An endpoint gets its policy as soon as its identity and all policies are known.
	undecided []uint16
}

// gateways are the router addresses for which the programs reply to ARP requests and neighbor solicitations, by family.
type gateways struct{ ipv4, ipv6 netip.Addr }

// compute derives the rows of endpoints. A pod keeps resolving the gateway that it got at its ADD, even if the node has another one by now. An endpoint without
// a known gateway gets no rows. If it already has rows, it keeps their gateway, so that pods are not cut off while the node's range is unknown. Without a row
// an endpoint passes no traffic; this includes endpoints whose policy is not in the kernel.
func compute(rows iter.Seq[*endpoints.Endpoint], node gateways, before func(id uint16) (gateways, bool),
	policyOf func(*endpoints.Endpoint) (*endpointpolicies.EndpointPolicy, bool)) desired {
	d := desired{
		facts:     make(map[uint16]*bpfendpoints.Facts),
		links:     make(map[uint32]*bpfendpoints.Link),
		addresses: make(map[netip.Addr]*bpfendpoints.Address),
	}
	for _, ep := range newestFirst(rows) {
		gw := gateways{ep.GatewayIPv4, ep.GatewayIPv6}.or(node)
		if !gw.ipv4.IsValid() || !gw.ipv6.IsValid() {
			if last, found := before(ep.ID); found {
				gw = gw.or(last)
			}
		}
		policy, decided := policyOf(ep)
		if !decided {
			d.undecided = append(d.undecided, ep.ID)
			continue
		}
		if err := d.check(ep, gw); err != nil {
			d.problems = append(d.problems, fmt.Errorf("endpoint %d (%s): %w", ep.ID, ep.AttachmentID(), err))
			continue
		}
		d.add(ep, gw, policy)
	}
	return d
}

// newestFirst drops endpoints in quarantine and sorts the others by age, youngest first. If two endpoints claim the same link, the younger one gets it, because
// the deletion of the older one was missed.
func newestFirst(rows iter.Seq[*endpoints.Endpoint]) []*endpoints.Endpoint {
	var eps []*endpoints.Endpoint
	for ep := range rows {
		if ep.Quarantine == "" {
			eps = append(eps, ep)
		}
	}
	slices.SortFunc(eps, func(a, b *endpoints.Endpoint) int { return endpoints.CompareAge(b, a) })
	return eps
}

// check returns the reason why an endpoint cannot have rows, or nil.
func (d *desired) check(ep *endpoints.Endpoint, gw gateways) error {
	switch {
	case ep.HostIfIndex <= 0:
		return errors.New("the index of its host interface is unknown")
	case ep.IPv4.IsValid() && !gw.ipv4.IsValid():
		return errors.New("waiting for the IPv4 router address of this node (see the table local-node)")
	case ep.IPv6.IsValid() && !gw.ipv6.IsValid():
		return errors.New("waiting for the IPv6 router address of this node (see the table local-node)")
	}
	if other, taken := d.links[uint32(ep.HostIfIndex)]; taken {
		return fmt.Errorf("endpoint %d is younger and has the same host interface, index %d", other.ID, ep.HostIfIndex)
	}
	return nil
}

func (d *desired) add(ep *endpoints.Endpoint, gw gateways, p *endpointpolicies.EndpointPolicy) {
	d.facts[ep.ID] = &bpfendpoints.Facts{
		ID: ep.ID, IfIndex: uint32(ep.HostIfIndex), PodMAC: ep.PodMAC, HostMAC: ep.HostMAC,
		IPv4: ep.IPv4, IPv6: ep.IPv6, GatewayIPv4: gw.ipv4, GatewayIPv6: gw.ipv6,
		Identity: p.Identity, Ingress: p.Ingress, Egress: p.Egress, PolicyRevision: p.Revision, Status: reconciler.StatusPending(),
	}
	d.links[uint32(ep.HostIfIndex)] = &bpfendpoints.Link{IfIndex: uint32(ep.HostIfIndex), ID: ep.ID, Status: reconciler.StatusPending()}
	for _, addr := range []netip.Addr{ep.IPv4, ep.IPv6} {
		if addr.IsValid() {
			d.addresses[addr] = &bpfendpoints.Address{Addr: addr, ID: ep.ID, Owner: endpointOwner, Status: reconciler.StatusPending()}
		}
	}
}

// gatewaysOf returns the gateways of the node's row, which may be nil.
func gatewaysOf(n *localnode.LocalNode) gateways {
	if n == nil {
		return gateways{}
	}
	return gateways{n.IPv4.Router, n.IPv6.Router}
}

// or replaces invalid addresses of g by the addresses of o.
func (g gateways) or(o gateways) gateways {
	if !g.ipv4.IsValid() {
		g.ipv4 = o.ipv4
	}
	if !g.ipv6.IsValid() {
		g.ipv6 = o.ipv6
	}
	return g
}
