package policycompiler

import (
	"net/netip"
	"slices"

	"github.com/waggle-net/waggle/pkg/policy"
)

// Pod is a possible peer of rules with named ports. The resolver needs pods without named ports as well, because a rule with a named port must not apply to
// them.
type Pod struct {
	Identity  uint32 // by which the pod may be known
	Addresses []netip.Addr
	Ports     []policy.NamedPort
	// DenyOnly is set if it is uncertain whether a pod with this identity exists, or still exists. Deny rules apply to its ports; allow rules do not.
	DenyOnly bool
}

func (p *Pod) equal(o *Pod) bool {
	return p.Identity == o.Identity && p.DenyOnly == o.DenyOnly && slices.Equal(p.Addresses, o.Addresses) && slices.Equal(p.Ports, o.Ports)
}

// podsOf holds the pods that may be known by one identity.
type podsOf struct {
	pods  map[*Pod]struct{}
	names map[namedRef]int // number of their ports with the name
}

// servers counts the ports of pods with one name, and the identities of these pods.
type servers struct{ pods, identities int }

// at returns the ports of a pod with the name and protocol. A valid pod has at most one.
func (n namedRef) at(ports []policy.NamedPort) (out []span) {
	for _, p := range ports {
		if p.Name == n.name && p.Protocol == n.protocol {
			out = append(out, span{protocol: p.Protocol, run: run{p.Number, p.Number}})
		}
	}
	return out
}

// NamesPortsOfPeers reports whether an endpoint has a rule that depends on [Resolver.UpsertPod].
func (r *Resolver) NamesPortsOfPeers() bool {
	r.settle()
	return len(r.namedRules) > 0
}

// UpsertPod sets the addresses and the named ports of a pod of the cluster, once for each identity by which the pod may be known. The caller chooses the key.
// Without any Pod the call removes the pod.
func (r *Resolver) UpsertPod(key string, as ...Pod) {
	was := r.pods[key]
	if slices.EqualFunc(was, as, func(p *Pod, now Pod) bool { return p.equal(&now) }) {
		return
	}
	concerned := r.concerns(was)
	now := make([]*Pod, len(as))
	for i := range as {
		now[i] = &as[i]
		r.addPod(now[i])
	}
	concerned = concerned || r.concerns(now)
	for _, pod := range was {
		r.removePod(pod)
	}
	if r.pods[key] = now; len(now) == 0 {
		delete(r.pods, key)
	}
	if concerned {
		r.podsChanged()
	}
}

// PodAs returns the values of the last [Resolver.UpsertPod] of a pod. The caller must not change them.
func (r *Resolver) PodAs(key string) []*Pod { return r.pods[key] }

// ForgetPods removes all pods.
func (r *Resolver) ForgetPods() {
	clear(r.pods)
	clear(r.podsOf)
	clear(r.serving)
	r.podsChanged()
}

func (r *Resolver) addPod(pod *Pod) {
	of := r.podsOf[pod.Identity]
	if of == nil {
		of = &podsOf{map[*Pod]struct{}{}, map[namedRef]int{}}
		r.podsOf[pod.Identity] = of
	}
	of.pods[pod] = struct{}{}
	for _, p := range pod.Ports {
		r.serve(of, namedRef{p.Name, p.Protocol}, 1)
	}
}

func (r *Resolver) removePod(pod *Pod) {
	of := r.podsOf[pod.Identity]
	delete(of.pods, pod)
	for _, p := range pod.Ports {
		r.serve(of, namedRef{p.Name, p.Protocol}, -1)
	}
	if len(of.pods) == 0 {
		delete(r.podsOf, pod.Identity)
	}
}

// serve adds n, 1 or -1, to the ports with a name of the pods of an identity.
func (r *Resolver) serve(of *podsOf, named namedRef, n int) {
	before, by := of.names[named], r.serving[named]
	if of.names[named] += n; of.names[named] == 0 {
		delete(of.names, named)
	}
	by.pods += n
	if before == 0 || before+n == 0 {
		by.identities += n
	}
	if r.serving[named] = by; by.pods == 0 {
		delete(r.serving, named)
	}
}

// podsChanged invalidates all rule sets that name ports of peers.
func (r *Resolver) podsChanged() {
	r.podPrefixesStale = true
	for _, set := range r.rulesets {
		if set.peersNamed {
			set.invalidate()
		}
	}
}

// concerns reports whether a rule names a port that one of some pods serves, or another pod with the same identity.
func (r *Resolver) concerns(pods []*Pod) bool {
	return slices.ContainsFunc(pods, func(pod *Pod) bool { return r.namesPortsOf(r.podsOf[pod.Identity]) })
}

// namesPortsOf reports whether a rule names a port that one of the pods of an identity serves.
func (r *Resolver) namesPortsOf(of *podsOf) bool {
	for named := range of.names {
		if r.portNames[named] > 0 {
			return true
		}
	}
	return false
}

// served returns the ports with a name if the pods of an identity agree about them. Otherwise differ holds the pods that serve a port with the name. A
// [Pod.DenyOnly] pod serves no port unless deny is set.
func (r *Resolver) served(number uint32, named namedRef, deny bool) (agreed []span, differ []*Pod) {
	of := r.podsOf[number]
	if of == nil || of.names[named] == 0 {
		return nil, nil
	}
	first, sure := true, false
	for pod := range of.pods {
		sure = sure || deny || !pod.DenyOnly
		at := named.at(pod.Ports)
		if first {
			agreed, first = at, false
		}
		if slices.Equal(at, agreed) {
			continue
		}
		for pod := range of.pods {
			if (deny || !pod.DenyOnly) && len(named.at(pod.Ports)) > 0 {
				differ = append(differ, pod)
			}
		}
		return nil, differ
	}
	if !sure {
		return nil, nil
	}
	return agreed, nil
}

// servedPort is one result of resolving the named ports of a rule: ports of all peers with an identity, or ports of the addresses of one pod.
type servedPort struct {
	identity uint32
	pod      *Pod // nil when all pods of the identity agree
	kind     Kind // of the entries for its addresses
	ports    []span
}

// servedTo resolves the named ports of an egress rule and calls found with each result. Peers that overlap have one result.
func (r *Resolver) servedTo(rule *rule, found func(servedPort)) {
	chosen := map[uint32]struct{}{}
	ofIdentity := func(number uint32) {
		if _, again := chosen[number]; again || r.podsOf[number] == nil {
			return
		}
		chosen[number] = struct{}{}
		for _, named := range rule.named {
			agreed, differ := r.served(number, named, rule.Deny)
			if len(agreed) > 0 {
				found(servedPort{identity: number, ports: agreed})
			}
			for _, pod := range differ {
				found(servedPort{identity: number, pod: pod, kind: CIDR, ports: named.at(pod.Ports)})
			}
		}
	}
	if rule.Peers.Any {
		for number := range r.podsOf {
			ofIdentity(number)
		}
		return
	}
	classes := map[uint32]struct{}{} // of all selectors, because there may be thousands of pods
	for _, s := range rule.selectors {
		for _, number := range s.identities {
			ofIdentity(number)
		}
		for _, number := range s.classes {
			classes[number] = struct{}{}
		}
	}
	if len(classes) > 0 {
		for number := range r.podsOf {
			if r.selectors.identities[number].inOneOf(classes) {
				ofIdentity(number)
			}
		}
	}
	if len(rule.cidrs) == 0 {
		return
	}
	for _, of := range r.podsOf {
		if slices.ContainsFunc(rule.named, func(n namedRef) bool { return of.names[n] > 0 }) {
			for pod := range of.pods {
				if rule.Deny || !pod.DenyOnly {
					r.servedWithin(rule, pod, found)
				}
			}
		}
	}
}

// servedWithin calls found with the named ports of a pod at its addresses inside the CIDRs of a rule.
func (r *Resolver) servedWithin(rule *rule, pod *Pod, found func(servedPort)) {
	for _, scope := range []policy.Scope{policy.Everyone, policy.Outside} {
		if !scope.Includes(pod.Identity, r.options) {
			continue
		}
		inside := &Pod{Identity: pod.Identity}
		for _, address := range pod.Addresses {
			if rule.includes(scope, full(address)) {
				inside.Addresses = append(inside.Addresses, address)
			}
		}
		if len(inside.Addresses) == 0 {
			continue
		}
		for _, named := range rule.named {
			if ports := named.at(pod.Ports); len(ports) > 0 {
				found(servedPort{identity: pod.Identity, pod: inside, kind: kindOf(scope), ports: ports})
			}
		}
	}
}

// includes reports whether a CIDR of the rule with a scope includes an address.
func (r *rule) includes(scope policy.Scope, address netip.Prefix) bool {
	for bits := address.Bits(); bits >= 0; bits-- {
		for _, c := range r.byPrefix[netip.PrefixFrom(address.Addr(), bits).Masked()] {
			if c.scope == scope && c.includes(address) {
				return true
			}
		}
	}
	return false
}

// full returns the prefix of a single address.
func full(address netip.Addr) netip.Prefix {
	address = address.Unmap().WithZone("")
	return netip.PrefixFrom(address, address.BitLen())
}

// podPrefixes returns the addresses that rules with named ports need as named CIDRs.
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
