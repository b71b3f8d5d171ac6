package policymap

import (
	"net/netip"
	"slices"

	"github.com/waggle-net/waggle/pkg/policy"
)

// Pod is a possible peer, as far as rules with named ports need it. One that names no ports counts as well: what a rule says of a
// name must not hold for it.
type Pod struct {
	Identity  uint32 // by which somebody may know it
	Addresses []netip.Addr
	Ports     []policy.NamedPort
	// DenyOnly: it is not sure, or not any more, that somebody of this identity is there. Rules deny what it serves, and none
	// allows it.
	DenyOnly bool
}

func (p *Pod) equal(o *Pod) bool {
	return p.Identity == o.Identity && p.DenyOnly == o.DenyOnly && slices.Equal(p.Addresses, o.Addresses) && slices.Equal(p.Ports, o.Ports)
}

// podsOf are the pods that may be known by one identity.
type podsOf struct {
	pods  map[*Pod]struct{}
	names map[namedRef]int // how many of them name a port so
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

// NamesPortsOfPeers reports whether an endpoint has a rule for which [Resolver.UpsertPod] makes a difference.
func (r *Resolver) NamesPortsOfPeers() bool {
	r.settle()
	return len(r.namedRules) > 0
}

// UpsertPod says where a pod of the cluster is and which ports it names; the key is the caller's. A pod that may be known by several
// identities is all of them at once. Of nothing it forgets the pod.
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

// DeletePod forgets a pod.
func (r *Resolver) DeletePod(key string) { r.UpsertPod(key) }

// PodAs is what was said of a pod last, which must not be changed.
func (r *Resolver) PodAs(key string) []*Pod { return r.pods[key] }

// ForgetPods forgets all.
func (r *Resolver) ForgetPods() {
	clear(r.pods)
	clear(r.podsOf)
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
		of.names[namedRef{p.Name, p.Protocol}]++
	}
}

func (r *Resolver) removePod(pod *Pod) {
	of := r.podsOf[pod.Identity]
	delete(of.pods, pod)
	for _, p := range pod.Ports {
		named := namedRef{p.Name, p.Protocol}
		if of.names[named]--; of.names[named] == 0 {
			delete(of.names, named)
		}
	}
	if len(of.pods) == 0 {
		delete(r.podsOf, pod.Identity)
	}
}

// podsChanged has everything compiled anew that names ports of peers.
func (r *Resolver) podsChanged() {
	r.podPrefixesStale = true
	for _, set := range r.rulesets {
		if set.peersNamed {
			set.invalidate()
		}
	}
}

// concerns tells whether a rule names a port that one of some pods serves, or another pod of its identity.
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

// served is what a named port is at the pods of an identity. When they do not agree, differ holds those that serve it.
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
			agreed, differ := r.served(number, named, rule.Deny)
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
			if len(s.classes) == 0 {
				continue
			}
			for number := range r.podsOf {
				if s.choosesClassOf(r.selectors.identities[number]) {
					ofIdentity(number)
				}
			}
		}
		for i := range rule.cidrs {
			r.servedWithin(&rule.cidrs[i], named, rule.Deny, found)
		}
	}
}

// servedWithin lists the pods with a named port whose address a CIDR holds.
func (r *Resolver) servedWithin(c *cidrPeer, named namedRef, deny bool, found func(servedPort)) {
	for number, of := range r.podsOf {
		if of.names[named] == 0 || !c.scope.Includes(number, r.options) {
			continue
		}
		for pod := range of.pods {
			ports := named.at(pod.Ports)
			if len(ports) == 0 || pod.DenyOnly && !deny {
				continue
			}
			inside := &Pod{Identity: number}
			for _, address := range pod.Addresses {
				if c.includes(full(address)) {
					inside.Addresses = append(inside.Addresses, address)
				}
			}
			if len(inside.Addresses) > 0 {
				found(servedPort{identity: number, pod: inside, kind: c.kind(), ports: ports})
			}
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
