package policy

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/waggle-net/waggle/pkg/labels"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

const sourceK8s = labels.SourceK8s

// FromKubernetes parses a NetworkPolicy. It always returns a policy: a rule that cannot be enforced allows nothing and is reported in Problems.
func FromKubernetes(o *k8s.NetworkPolicy, env Environment) *Policy {
	p := &Policy{Ref: Ref{Kind: Kubernetes, Namespace: o.Namespace, Name: o.Name}, UID: o.UID}
	p.audit(o.Annotations)
	part := Part{Path: "spec", IsolatesIngress: o.IsIngress, IsolatesEgress: o.IsEgress,
		Subject: Selector{Requirements: append([]Requirement{inNamespace(o.Namespace)}, podRequirements(&o.PodSelector)...)}}
	if o.Invalid != "" {
		p.invalid("spec", o.Invalid+": the policy isolates the pods that it may mean and allows nothing; correct it")
		p.Parts = []Part{part}
		return p
	}
	k := kubernetesParser{policy: p, env: &env}
	if o.IsIngress {
		part.Rules = k.rules(Ingress, "spec.ingress", o.Ingress)
	}
	if o.IsEgress {
		part.Rules = append(part.Rules, k.rules(Egress, "spec.egress", o.Egress)...)
	}
	p.Parts = []Part{part}
	p.limitExceptions()
	return p
}

type kubernetesParser struct {
	policy    *Policy
	env       *Environment
	portNames portNames
	selectors int // of peers, so far
}

// rules parses the rules of one direction. It omits rules that allow nothing because of a problem.
func (k *kubernetesParser) rules(direction Direction, path string, from []k8s.PolicyRule) (rules []Rule) {
	for i := range from {
		path := fmt.Sprintf("%s[%d]", path, i)
		if from[i].Invalid != "" {
			k.policy.invalid(path, from[i].Invalid+": "+outcome(false)+"; correct it")
			continue
		}
		peers, ok := k.peers(path, direction, from[i].Peers)
		ports, also := k.ports(path, from[i].Ports)
		if ok && also {
			rules = append(rules, Rule{Path: path, Direction: direction, Peers: peers, Ports: ports})
		}
	}
	return rules
}

// peers parses the peers of a rule. A rule without peers matches every peer. The result is not ok if the rule must allow nothing.
func (k *kubernetesParser) peers(path string, direction Direction, from []k8s.Peer) (peers Peers, ok bool) {
	if len(from) == 0 {
		return Peers{Any: true}, true
	}
	side := "from"
	if direction == Egress {
		side = "to"
	}
	ok = true
	for i := range from {
		if from[i].IPBlock.IsValid() {
			peers.List = append(peers.List, Peer{CIDR: from[i].IPBlock, Except: from[i].Except, Scope: Everyone})
			continue
		}
		at := fmt.Sprintf("%s.%s[%d]", path, side, i)
		if k.selectors++; k.selectors > maxPeerSelectors {
			k.policy.add(Problem{Path: at, Reason: ReasonUnsupported, Message: errPeerSelectors.Error() + ": " + outcome(false) + "; use several policies"})
			return Peers{}, false
		}
		selector := k.podsOf(&from[i])
		if !k.policy.filterRequirements(at, selector, false, k.env) {
			ok = false
		}
		peers.List = append(peers.List, Peer{Labels: selector})
	}
	return peers, ok
}

// podsOf returns a selector for pods by their labels and the labels of their namespaces; without a namespace selector, for pods in the policy's namespace.
func (k *kubernetesParser) podsOf(peer *k8s.Peer) *Selector {
	s := &Selector{}
	switch {
	case peer.Namespaces == nil:
		s.Requirements = []Requirement{inNamespace(k.policy.Ref.Namespace)}
	case len(peer.Namespaces.MatchLabels)+len(peer.Namespaces.Expressions) == 0:
		s.Requirements = []Requirement{inSomeNamespace()}
	default:
		s.Requirements = append([]Requirement{inSomeNamespace()}, requirements(peer.Namespaces, labels.KeyNamespaceLabels+".")...)
	}
	if peer.Pods != nil {
		s.Requirements = append(s.Requirements, podRequirements(peer.Pods)...)
	}
	return s
}

func inNamespace(namespace string) Requirement {
	return Requirement{Source: sourceK8s, Key: labels.KeyNamespace, Operator: In, Values: []string{namespace}}
}

// inSomeNamespace matches every pod and no other peer.
func inSomeNamespace() Requirement {
	return Requirement{Source: sourceK8s, Key: labels.KeyNamespace, Operator: Exists}
}

func podRequirements(s *k8s.Selector) []Requirement { return requirements(s, "") }

// requirements converts a Kubernetes selector. The prefix is prepended to every key.
func requirements(s *k8s.Selector, prefix string) (list []Requirement) {
	for _, key := range slices.Sorted(maps.Keys(s.MatchLabels)) {
		list = append(list, Requirement{Source: sourceK8s, Key: prefix + key, Operator: In, Values: []string{s.MatchLabels[key]}})
	}
	for _, e := range s.Expressions {
		list = append(list, Requirement{Source: sourceK8s, Key: prefix + e.Key, Operator: Operator(e.Operator), Values: e.Values})
	}
	return list
}

// ports parses the ports of a rule. A rule without ports matches all ports. A port with an unknown protocol matches none. The result is not ok if the rule
// must allow nothing.
func (k *kubernetesParser) ports(path string, from []k8s.PolicyPort) (ports Ports, ok bool) {
	if len(from) == 0 {
		return Ports{Any: true}, true
	}
	k.portNames.nextRule()
	for i, o := range from {
		protocol, found := protocols[o.Protocol]
		if !found {
			continue
		}
		p := Port{Protocol: protocol}
		switch number, err := strconv.ParseUint(o.Port, 10, 16); {
		case o.Port == "":
			p.All = true
		case err != nil:
			if p.Name = o.Port; !k.portNames.add(p.Name) {
				k.policy.add(Problem{Path: fmt.Sprintf("%s.ports[%d]", path, i), Reason: ReasonUnsupported,
					Message: errPortNames.Error() + ": " + outcome(false) + "; use numbers, or several policies"})
				return Ports{}, false
			}
		default:
			p.Low, p.High = uint16(number), max(uint16(number), o.EndPort)
		}
		ports.List = append(ports.List, p)
	}
	return ports, true
}

// protocols maps the names of protocols with ports to their numbers. Kubernetes and Cilium share these names.
var protocols = map[string]uint8{"TCP": ProtocolTCP, "UDP": ProtocolUDP, "SCTP": ProtocolSCTP}
