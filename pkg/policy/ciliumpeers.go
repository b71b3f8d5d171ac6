package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/labels"
)

// kind is a field of a rule that selects peers.
type kind struct {
	field string
	read  func(r *ciliumRule, path string, item json.RawMessage) ([]Peer, error) // nil: not supported
	// advice is the alternative to an unsupported kind.
	advice string
}

// side returns the prefix of the field names that select peers.
func (r *ciliumRule) side() string {
	if r.direction == Egress {
		return "to"
	}
	return "from"
}

// kinds returns the fields that select peers in the rule's direction.
func (r *ciliumRule) kinds() []kind {
	side := r.side()
	kinds := []kind{
		{field: side + "Endpoints", read: (*ciliumRule).endpoints},
		{field: side + "CIDR", read: (*ciliumRule).cidr},
		{field: side + "CIDRSet", read: (*ciliumRule).cidrSet},
		{field: side + "Entities", read: (*ciliumRule).entity},
		{field: side + "Nodes", advice: "use " + side + "Entities or CIDRs"},
		{field: side + "Groups", advice: "use CIDRs"},
	}
	if r.direction == Egress {
		kinds = append(kinds, kind{field: "toServices", read: (*ciliumRule).service},
			kind{field: "toFQDNs", advice: "use CIDRs"})
	}
	return kinds
}

// peers parses all kinds of peers. A rule without any of these fields matches every peer; an empty list matches none.
func (r *ciliumRule) peers() Peers {
	var peers Peers
	given := false
	ways := map[string]bool{} // kinds with peers; both forms of CIDRs count as one
	for _, kind := range r.kinds() {
		raw, found := r.fields[kind.field]
		if !found {
			continue
		}
		var items []json.RawMessage
		if err := decode(raw, &items); err != nil {
			r.invalid(kind.field, short(err))
			r.anyPeers = true
			continue
		}
		given = true
		if len(items) == 0 {
			continue
		}
		if kind.read == nil {
			r.unsupported(kind.field, kind.field+" is not supported", kind.advice)
			r.anyPeers = true
			continue
		}
		ways[strings.TrimSuffix(kind.field, "Set")] = true
		for i, item := range items {
			r.peer(&peers, kind, i, item)
		}
	}
	if len(ways) > 1 {
		r.invalid("", "it chooses peers in several ways, whose combination is undefined")
	}
	peers.Any = peers.Any || !given
	if peers.Any {
		peers.List = nil
	}
	return peers
}

// peer adds the peers of one item.
func (r *ciliumRule) peer(peers *Peers, kind kind, i int, item json.RawMessage) {
	path := fmt.Sprintf("%s[%d]", kind.field, i)
	more, err := kind.read(r, path, item)
	switch {
	case errors.Is(err, errAllPeers):
		peers.Any = true
	case errors.Is(err, errReported):
		r.anyPeers = true
	case err != nil:
		r.invalid(path, short(err))
		r.anyPeers = true
	}
	peers.List = append(peers.List, more...)
}

var (
	errAllPeers = errors.New("all peers are selected")
	errReported = errors.New("a problem of the policy has the reason")
)

func (r *ciliumRule) endpoints(path string, item json.RawMessage) ([]Peer, error) {
	selector, err := r.peerSelector(item)
	if err != nil {
		return nil, err
	}
	if r.selectors++; r.selectors > maxPeerSelectors {
		return nil, errPeerSelectors
	}
	if selector.isAPIServer() {
		return r.env.apiServers(), nil
	}
	if r.usesOtherSources(path, selector) {
		return nil, errReported
	}
	if !r.policy.filterRequirements(r.path+"."+path, selector, r.deny, r.env) {
		r.closed = true
	}
	r.reportWorldLabel(path, selector)
	return []Peer{{Labels: selector}}, nil
}

// reportWorldLabel reports a selector that requires a label of the world which no peer has with the enabled families: with one family, the world has the label
// reserved:world; with both, it has the labels of the families. A deny rule with such a selector denies nothing.
func (r *ciliumRule) reportWorldLabel(path string, s *Selector) {
	if r.env.FamiliesUnknown {
		return
	}
	one := r.env.IPv4Only || r.env.IPv6Only
	for i := range s.Requirements {
		q := &s.Requirements[i]
		if q.Source != labels.SourceReserved || !q.demands() {
			continue
		}
		switch q.Key {
		case identity.Name(identity.World):
			if !one {
				r.reportPeerless(path, "the label reserved:world", "both address families are enabled", "use the entity world")
			}
		case identity.Name(identity.WorldIPv4), identity.Name(identity.WorldIPv6):
			if one {
				r.reportPeerless(path, "the label reserved:"+q.Key, "one address family is enabled", "use the entity "+q.Key)
			}
		}
	}
}

// usesOtherSources reports labels of peers outside the cluster. Waggle's identities have no such labels.
func (r *ciliumRule) usesOtherSources(path string, s *Selector) bool {
	for _, q := range s.Requirements {
		if slices.Contains([]string{"cidr", "cidrgroup", "fqdn"}, q.Source) {
			r.unsupported(path, "choosing peers by a label of the source "+q.Source+" is not supported", "use CIDRs")
			return true
		}
	}
	return false
}

func (r *ciliumRule) cidr(_ string, item json.RawMessage) ([]Peer, error) {
	var text string
	if err := decode(item, &text); err != nil {
		return nil, err
	}
	prefix, err := parseCIDR(text)
	return []Peer{{CIDR: prefix, Scope: Outside}}, err
}

// parseCIDR parses a CIDR or an address, and clears the host bits.
func parseCIDR(text string) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(text)
	if addr, errAddr := netip.ParseAddr(text); errAddr == nil && addr.Zone() == "" {
		prefix, err = netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	if err != nil || prefix.Addr().Is4In6() {
		return netip.Prefix{}, errors.New(quote(text) + " is neither a CIDR nor an address")
	}
	return prefix.Masked(), nil
}

// entity parses the name of an entity and returns its peers.
func (r *ciliumRule) entity(path string, item json.RawMessage) ([]Peer, error) {
	var name string
	if err := decode(item, &name); err != nil {
		return nil, err
	}
	ids := func(list ...uint32) ([]Peer, error) { return []Peer{{Identities: list}}, nil }
	switch name {
	case "all":
		return nil, errAllPeers
	case "none":
		return nil, nil
	case "world":
		return ids(identity.World, identity.WorldIPv4, identity.WorldIPv6)
	case "world-ipv4":
		if r.env.IPv4Only {
			return ids(identity.World)
		}
		return ids(identity.WorldIPv4)
	case "world-ipv6":
		if r.env.IPv6Only {
			return ids(identity.World)
		}
		return ids(identity.WorldIPv6)
	case "host":
		return ids(identity.Host)
	case "remote-node":
		return ids(identity.RemoteNode, identity.KubeAPIServer)
	case "kube-apiserver":
		return r.env.apiServers(), nil
	case "health":
		return ids(identity.Health)
	case "init":
		return ids(identity.Init)
	case "unmanaged":
		r.reportUnmatched(path, name, "every pod on a node with an agent is managed")
		return ids(identity.Unmanaged)
	case "ingress":
		r.reportUnmatched(path, name, "there are no proxies of Ingresses")
		return ids(ingressIdentity)
	case "cluster":
		return r.cluster(path), nil
	}
	return nil, errors.New("the entity " + quote(name) + " is not known")
}

// reportUnmatched reports an entity that no peer has. The other peers of the rule are enforced.
func (r *ciliumRule) reportUnmatched(path, name, why string) {
	r.reportPeerless(path, "the entity "+name, why, "leave it out")
}

// reportPeerless reports a part of a rule that matches no peer, and the remedy.
func (r *ciliumRule) reportPeerless(path, part, why, remedy string) {
	r.policy.add(Problem{Path: r.path + "." + path, Reason: ReasonUnsupported, Message: part + " matches no peer: " + why +
		"; the other peers of the rule count; " + remedy})
}

// ingressIdentity is the identity of Cilium's Ingress proxies. No peer has it in Waggle.
const ingressIdentity uint32 = 8

// cluster returns every pod and node of the cluster, and the API server even if it is outside the cluster, as in Cilium.
func (r *ciliumRule) cluster(path string) []Peer {
	pods := &Selector{Requirements: []Requirement{inSomeNamespace()}}
	if r.env.Cluster != "" {
		pods.Requirements = []Requirement{{Source: sourceK8s, Key: labels.KeyCluster, Operator: In, Values: []string{r.env.Cluster}}}
	}
	r.policy.filterRequirements(r.path+"."+path, pods, r.deny, r.env)
	return append(r.env.apiServers(), Peer{Labels: pods, Entity: true}, Peer{Identities: []uint32{identity.Host, identity.RemoteNode, identity.Health,
		identity.Init, identity.Unmanaged, ingressIdentity}})
}
