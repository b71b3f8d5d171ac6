package endpointmaps

import (
	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
)

// slotOf converts a row to the slot that the programs read, with revision 0.
func slotOf(f *bpfendpoints.Facts) slot {
	s := bpf.EndpointFacts{
		Ifindex: f.IfIndex, Identity: f.Identity,
		PolicyIngress: f.Ingress.Enforced.ID, ShapeIngress: f.Ingress.Enforced.Shape,
		PolicyEgress: f.Egress.Enforced.ID, ShapeEgress: f.Egress.Enforced.Shape,
		AuditIngress: f.Ingress.Audited.ID, AuditShapeIngress: f.Ingress.Audited.Shape,
		AuditEgress: f.Egress.Audited.ID, AuditShapeEgress: f.Egress.Audited.Shape,
		PolicyRevision: f.PolicyRevision,
		Id:             f.ID, PodMac: f.PodMAC, HostMac: f.HostMAC,
		Ipv4: bpf.IPv4Word(f.IPv4), GatewayIpv4: bpf.IPv4Word(f.GatewayIPv4),
		Ipv6: bpf.IPv6Bytes(f.IPv6), GatewayIpv6: bpf.IPv6Bytes(f.GatewayIPv6),
	}
	if f.IPv4.IsValid() {
		s.Flags |= bpf.FlagIPv4
	}
	if f.IPv6.IsValid() {
		s.Flags |= bpf.FlagIPv6
	}
	return slot{f.ID, s}
}

// same reports whether two slots are equal except for their revisions.
func same(a, b bpf.EndpointFacts) bool {
	a.Revision, b.Revision = 0, 0
	return a == b
}

// next returns want with the revision that follows the one of have. No flow has stored this revision, even if the slot was freed in between.
func next(have, want bpf.EndpointFacts) bpf.EndpointFacts {
	want.Revision = have.Revision + 1
	return want
}

// refOf converts an address row to the map value that the programs read.
func refOf(a *bpfendpoints.Address) bpf.EndpointRef {
	ref := bpf.EndpointRef{Id: uint32(a.ID)}
	if a.Host {
		ref.Flags = bpf.FlagHost
	}
	return ref
}
