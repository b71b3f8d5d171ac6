package policymap

import (
	"net/netip"
	"slices"

	"github.com/waggle-net/waggle/pkg/policy"
)

// Pod is a possible peer, as far as rules with named ports need it.
type Pod struct {
	Identity  uint32
	Addresses []netip.Addr
	Ports     []policy.NamedPort
}

func (p *Pod) equal(o *Pod) bool {
	return p.Identity == o.Identity && slices.Equal(p.Addresses, o.Addresses) && slices.Equal(p.Ports, o.Ports)
}

// at is what a named port is at somebody; of one protocol and name it is one port, if they follow the rules.
func (n namedRef) at(ports []policy.NamedPort) (out []span) {
	for _, p := range ports {
		if p.Name == n.name && p.Protocol == n.protocol {
			out = append(out, span{protocol: p.Protocol, run: run{p.Number, p.Number}})
		}
	}
	return out
}

// UpsertPod says where a pod of the cluster is and which ports it names; the key is the caller's, "namespace/name".
func (r *Resolver) UpsertPod(key string, pod Pod) {
	was := r.pods[key]
	if was != nil && was.equal(&pod) {
		return
	}
	r.removePod(key)
	r.pods[key] = &pod
	if r.podsOf[pod.Identity] == nil {
		r.podsOf[pod.Identity] = map[string]*Pod{}
	}
	r.podsOf[pod.Identity][key] = &pod
	r.podsChanged(was, &pod)
}

// DeletePod forgets a pod.
func (r *Resolver) DeletePod(key string) {
	was := r.pods[key]
	r.removePod(key)
	r.podsChanged(was)
}

func (r *Resolver) removePod(key string) {
	was := r.pods[key]
	if was == nil {
		return
	}
	delete(r.pods, key)
	if delete(r.podsOf[was.Identity], key); len(r.podsOf[was.Identity]) == 0 {
		delete(r.podsOf, was.Identity)
	}
}

// podsChanged has everything compiled anew that names ports of peers, if pods that have come or gone make a difference.
func (r *Resolver) podsChanged(pods ...*Pod) {
	if !slices.ContainsFunc(pods, r.concerns) {
		return
	}
	r.podPrefixesStale = true
	for _, set := range r.rulesets {
		if set.peersNamed {
			set.stale = true
		}
	}
}

// concerns tells whether a rule names a port that a pod serves, or another one of its identity.
func (r *Resolver) concerns(pod *Pod) bool {
	if pod == nil {
		return false
	}
	for rule := range r.namedRules {
		for _, named := range rule.named {
			if len(named.at(pod.Ports)) > 0 {
				return true
			}
			for _, other := range r.podsOf[pod.Identity] {
				if len(named.at(other.Ports)) > 0 {
					return true
				}
			}
		}
	}
	return false
}

// served is what a named port is at the pods of an identity. When they do not agree, differ holds those that serve it.
func (r *Resolver) served(number uint32, named namedRef) (agreed []span, differ []*Pod) {
	pods := r.podsOf[number]
	first := true
	for _, pod := range pods {
		at := named.at(pod.Ports)
		if first {
			agreed, first = at, false
		}
		if slices.Equal(at, agreed) {
			continue
		}
		for _, pod := range pods {
			if len(named.at(pod.Ports)) > 0 {
				differ = append(differ, pod)
			}
		}
		return nil, differ
	}
	return agreed, nil
}

// servedPort is what a rule with a named port comes to: either some ports of everybody who has an identity, or those of
// one pod, which is known by its addresses.
type servedPort struct {
	identity uint32
	pod      *Pod // nil when all of the identity agree
	kind     Kind // of the entries for its addresses
	ports    []span
}

// servedTo lists what the named ports of an egress rule come to.
func (r *Resolver) servedTo(rule *rule, found func(servedPort)) {
	for _, named := range rule.named {
		ofIdentity := func(number uint32) {
			agreed, differ := r.served(number, named)
			if len(agreed) > 0 {
				found(servedPort{identity: number, ports: agreed})
			}
			for _, pod := range differ {
				found(servedPort{identity: number, pod: pod, kind: CIDR, ports: named.at(pod.Ports)})
			}
		}
		if rule.Peers.Any {
			for number := range r.podsOf {
				ofIdentity(number)
			}
			continue
		}
		for _, s := range rule.selectors {
			for _, number := range s.identities {
				ofIdentity(number)
			}
		}
		for i := range rule.cidrs {
			r.servedWithin(&rule.cidrs[i], named, found)
		}
	}
}

// servedWithin lists the pods with a named port whose address a CIDR holds.
func (r *Resolver) servedWithin(c *cidrPeer, named namedRef, found func(servedPort)) {
	for _, pod := range r.pods {
		ports := named.at(pod.Ports)
		if len(ports) == 0 || !c.scope.Includes(pod.Identity, r.options) {
			continue
		}
		inside := &Pod{Identity: pod.Identity}
		for _, address := range pod.Addresses {
			if c.includes(full(address)) {
				inside.Addresses = append(inside.Addresses, address)
			}
		}
		if len(inside.Addresses) > 0 {
			found(servedPort{identity: pod.Identity, pod: inside, kind: c.kind(), ports: ports})
		}
	}
}

// full is the prefix of one address.
func full(address netip.Addr) netip.Prefix {
	address = address.Unmap().WithZone("")
	return netip.PrefixFrom(address, address.BitLen())
}

// podPrefixes are the addresses that rules with named ports need as named CIDRs.
func (r *Resolver) podPrefixes() map[netip.Prefix]struct{} {
	out := map[netip.Prefix]struct{}{}
	for rule := range r.namedRules {
		r.servedTo(rule, func(s servedPort) {
			if s.pod != nil {
				for _, address := range s.pod.Addresses {
					out[full(address)] = struct{}{}
				}
			}
		})
	}
	return out
}
