package policyexplain

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/identities"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/namedcidrs"
)

// Errors of [View.Find].
var (
	ErrUnknown = errors.New("not known on this node")
	ErrInvalid = errors.New("want an address, NAMESPACE/POD or id:NUMBER")
)

// Party is one end of a connection.
type Party struct {
	Pod      string              // "namespace/name"; empty if it is not a pod, or if the pod is unknown
	Addrs    []netip.Addr        // one for each family; empty for an identity
	Endpoint *endpoints.Endpoint // nil if it is not on this node
	Identity uint32              // security identity; 0 if unknown
	Ports    []policy.NamedPort
}

// addr returns the party's address of a family.
func (p *Party) addr(ipv6 bool) (netip.Addr, bool) {
	for _, a := range p.Addrs {
		if a.Is6() == ipv6 {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// Find resolves a party from an address, "namespace/pod" or "id:number".
func (v *View) Find(who string) (Party, error) {
	if number, given := strings.CutPrefix(who, "id:"); given {
		id, err := strconv.ParseUint(number, 10, 32)
		if err != nil {
			return Party{}, fmt.Errorf("%.100q: %w", who, ErrInvalid)
		}
		if _, _, found := v.Identities.Get(v.txn, identities.ByID(uint32(id))); !found {
			return Party{}, fmt.Errorf("identity %d: %w; see waggle identity list", id, ErrUnknown)
		}
		return Party{Identity: uint32(id)}, nil
	}
	if addr, err := netip.ParseAddr(who); err == nil {
		return v.ByAddr(addr.Unmap().WithZone("")), nil
	}
	if strings.Count(who, "/") != 1 || strings.HasPrefix(who, "/") || strings.HasSuffix(who, "/") {
		return Party{}, fmt.Errorf("%.100q: %w", who, ErrInvalid)
	}
	return v.byPod(who)
}

// ByAddr returns the party with an address.
func (v *View) ByAddr(addr netip.Addr) Party {
	if ep, _, found := v.Endpoints.Get(v.txn, endpoints.ByAddress(addr)); found {
		p := v.ofEndpoint(ep)
		p.Addrs = []netip.Addr{addr}
		return p
	}
	p := Party{Addrs: []netip.Addr{addr}, Identity: v.identityOf(addr)}
	if p.Identity >= identity.ClusterMin {
		p.Pod, p.Ports = v.podAt(addr)
	}
	return p
}

// ofEndpoint returns the party of an endpoint of this node.
func (v *View) ofEndpoint(ep *endpoints.Endpoint) Party {
	p := Party{Pod: ep.PodName(), Endpoint: ep, Ports: namedPorts(ep.Ports)}
	for _, a := range []netip.Addr{ep.IPv4, ep.IPv6} {
		if a.IsValid() {
			p.Addrs = append(p.Addrs, a)
		}
	}
	if row, found := endpointpolicies.Of(v.txn, v.EndpointPolicies, ep.ID, ep.AttachmentID()); found {
		p.Identity = row.Identity
	}
	return p
}

// byPod finds the youngest pod with the name on this node, or the pod on another node.
func (v *View) byPod(name string) (Party, error) {
	var youngest *endpoints.Endpoint
	for ep := range v.Endpoints.List(v.txn, endpoints.ByPod(name)) {
		if youngest == nil || endpoints.CompareAge(ep, youngest) > 0 {
			youngest = ep
		}
	}
	if youngest != nil {
		return v.ofEndpoint(youngest), nil
	}
	if ep, _, found := v.CiliumEndpoints.Get(v.txn, cilium.EndpointByName(name)); found && ep.NumAddrs() > 0 {
		return Party{Pod: name, Addrs: ep.Addrs(), Identity: v.identityOf(ep.Addr(0)), Ports: namedPorts(ep.Ports())}, nil
	}
	if pod, _, found := v.Pods.Get(v.txn, k8s.PodByName(name)); found && len(pod.PodIPs) > 0 { // in the host network
		return Party{Pod: name, Addrs: pod.PodIPs, Identity: v.identityOf(pod.PodIPs[0]), Ports: namedPorts(pod.Ports)}, nil
	}
	return Party{}, fmt.Errorf("pod %.300s: %w; give its address", name, ErrUnknown)
}

// podAt finds the pod on another node with an address. It scans the table unless [View.indexPods] was called before.
func (v *View) podAt(addr netip.Addr) (string, []policy.NamedPort) {
	ep, found := v.remote[addr]
	if v.remote == nil {
		for ep = range v.CiliumEndpoints.All(v.txn) {
			if found = ep.Has(addr); found {
				break
			}
		}
	}
	if !found {
		return "", nil
	}
	return ep.Key(), namedPorts(ep.Ports())
}

// indexPods builds the index of [View.podAt] with one scan of all pods on other nodes.
func (v *View) indexPods() {
	v.remote = map[netip.Addr]*cilium.Endpoint{}
	for ep := range v.CiliumEndpoints.All(v.txn) {
		for _, addr := range ep.Addrs() {
			v.remote[addr] = ep
		}
	}
}

// identityOf returns the identity of the longest ipcache prefix that contains an address.
func (v *View) identityOf(addr netip.Addr) uint32 {
	row, found := longest(v.txn, v.IPCache, addr, ipcache.ByPrefix)
	if !found {
		return identity.Unknown
	}
	return row.Identity
}

// cidrOf returns the longest prefix that contains an address and that a policy names.
func (v *View) cidrOf(addr netip.Addr) (*namedcidrs.CIDR, bool) {
	return longest(v.txn, v.NamedCIDRs, addr, namedcidrs.ByPrefix)
}

// longest returns the row with the longest prefix that contains an address.
func longest[T any](txn statedb.ReadTxn, table statedb.Table[T], addr netip.Addr, by func(netip.Prefix) statedb.Query[T]) (row T, found bool) {
	if !addr.IsValid() {
		return row, false
	}
	for bits := addr.BitLen(); bits >= 0; bits-- {
		prefix, err := addr.Prefix(bits)
		if err != nil {
			return row, false
		}
		if row, _, found = table.Get(txn, by(prefix)); found {
			return row, true
		}
	}
	return row, false
}

// labels returns the labels of an identity.
func (v *View) labels(id uint32) map[string]string {
	if row, _, found := v.Identities.Get(v.txn, identities.ByID(id)); found {
		return row.Labels
	}
	return nil
}

// peer returns a party as the peer of a lookup.
func (v *View) peer(p *Party, addr netip.Addr) policy.Party {
	return policy.Party{Identity: p.Identity, Labels: v.labels(p.Identity), Addr: addr, Ports: p.Ports}
}

// subject returns an endpoint as the subject of a lookup.
func subject(p *Party) policy.Party {
	return policy.Party{Identity: p.Identity, Labels: p.Endpoint.Labels, Ports: p.Ports}
}

// model converts a party to the API's type.
func (v *View) model(p *Party, addr netip.Addr) models.PolicyParty {
	m := models.PolicyParty{Pod: p.Pod, Identity: int64(p.Identity), Labels: identities.List(v.labels(p.Identity))}
	if p.Endpoint != nil {
		m.Endpoint = int64(p.Endpoint.ID)
	}
	if addr.IsValid() {
		m.Address = addr.String()
	}
	if c, found := v.cidrOf(addr); found {
		m.CIDR, m.CIDRIdentity = c.Prefix.String(), int64(c.Identity)
	}
	return m
}
