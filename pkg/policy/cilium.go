package policy

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/waggle-net/waggle/pkg/labels"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
)

// FromCilium parses a CiliumNetworkPolicy or a CiliumClusterwideNetworkPolicy. It always returns a policy: a rule that cannot be enforced fails closed and
// is reported in Problems. An unreadable policy isolates its namespace. An unreadable clusterwide policy selects no endpoint, because one typing mistake
// must not isolate every pod.
func FromCilium(o *cilium.Policy, env Environment) *Policy {
	ref := Ref{Kind: Cilium, Namespace: o.Namespace, Name: o.Name}
	if o.Namespace == "" {
		ref.Kind = Clusterwide
	}
	p := &Policy{Ref: ref, UID: o.UID}
	p.audit(o.Annotations)
	c := &ciliumParser{policy: p, env: &env, services: serviceReader{written: serviceItems(o)}}
	var specs []json.RawMessage
	if len(o.Specs) > 0 {
		if err := decode(o.Specs, &specs); err != nil {
			c.unreadable("specs", err)
		}
	}
	if len(o.Spec) > 0 {
		c.spec("spec", o.Spec)
	} else if len(o.Specs) == 0 || len(specs) == 0 && len(p.Parts) == 0 {
		p.invalid("spec", "there is neither a rule in spec nor one in specs: the policy does nothing; write one")
	}
	for i, raw := range specs {
		c.spec(fmt.Sprintf("specs[%d]", i), raw)
	}
	c.finishServices()
	p.limitExceptions()
	return p
}

type ciliumParser struct {
	policy     *Policy
	env        *Environment
	groups     groupReader
	services   serviceReader
	portNames  portNames
	selectors  int        // in fromEndpoints and toEndpoints, so far
	conditions conditions // of fromRequires and toRequires, in all rules
}

// clusterwide reports whether the policy is a CiliumClusterwideNetworkPolicy.
func (c *ciliumParser) clusterwide() bool { return c.policy.Ref.Kind == Clusterwide }

// unreadable reports a problem, and adds a part that isolates the namespace of the policy if it has one.
func (c *ciliumParser) unreadable(path string, err error) {
	if c.clusterwide() {
		c.policy.invalid(path, "it cannot be read ("+short(err)+"): it selects no endpoint; correct it")
		return
	}
	c.policy.invalid(path, "it cannot be read ("+short(err)+
		"): everything that it may mean is isolated, and nothing is allowed by it; correct it")
	c.policy.Parts = append(c.policy.Parts, Part{Path: path, Subject: c.everything(), IsolatesIngress: true, IsolatesEgress: true})
}

// everything selects all endpoints to which the policy can apply.
func (c *ciliumParser) everything() Selector {
	if c.clusterwide() {
		return Selector{}
	}
	return Selector{Requirements: []Requirement{inNamespace(c.policy.Ref.Namespace)}}
}

// section is one list of rules in a spec.
type section struct {
	field     string
	direction Direction
	deny      bool
}

var sections = []section{{"ingress", Ingress, false}, {"ingressDeny", Ingress, true}, {"egress", Egress, false}, {"egressDeny", Egress, true}}

// knownFields are the supported fields of a spec. Description, labels and log do not affect verdicts.
var knownFields = []string{"endpointSelector", "nodeSelector", "enableDefaultDeny", "ingress", "ingressDeny", "egress", "egressDeny",
	"description", "labels", "log"}

// spec parses one spec into a [Part].
func (c *ciliumParser) spec(path string, raw json.RawMessage) {
	fields, err := object(raw)
	if err != nil {
		c.unreadable(path, err)
		return
	}
	subject, closed, selectsNone := c.subject(path, fields)
	if selectsNone {
		return
	}
	part := Part{Path: path, Subject: subject}
	for _, field := range unknown(fields, knownFields...) {
		c.policy.add(Problem{Path: path + "." + field, Reason: ReasonUnsupported,
			Message: "the field is unknown: no rule of " + path + " allows anything; leave it out"})
		closed = true
	}
	var has [Egress + 1]bool
	for _, s := range sections {
		rules, required, given := c.rules(path, s, fields[s.field])
		has[s.direction] = has[s.direction] || given
		for _, r := range required {
			if !r.Deny || !closed { // an ambiguous spec does not narrow deny rules
				part.Requirements = append(part.Requirements, r)
			}
		}
		for _, r := range rules {
			if r.Deny || !closed {
				part.Rules = append(part.Rules, r)
			}
		}
	}
	if closed && !has[Ingress] && !has[Egress] {
		has[Ingress], has[Egress] = true, true // the spec may mean either direction
	}
	part.IsolatesIngress, part.IsolatesEgress = c.defaultDeny(path, fields["enableDefaultDeny"], has[Ingress], has[Egress])
	c.policy.Parts = append(c.policy.Parts, part)
}

// rules parses one section. A section that is absent, null or empty is not given: it has no effect.
func (c *ciliumParser) rules(path string, s section, raw json.RawMessage) (rules []Rule, required []PeerRequirement, given bool) {
	path += "." + s.field
	var items []json.RawMessage
	if len(raw) == 0 {
		return nil, nil, false
	}
	if err := decode(raw, &items); err != nil {
		c.policy.invalid(path, "it cannot be read ("+short(err)+"): "+outcome(s.deny)+"; correct it")
		if s.deny {
			rules = []Rule{{Path: path, Direction: s.direction, Deny: true, Peers: Peers{Any: true}, Ports: Ports{Any: true}}}
		}
		return rules, nil, true
	}
	for i, item := range items {
		r := ciliumRule{ciliumParser: c, path: fmt.Sprintf("%s[%d]", path, i), section: s}
		if rule, ok := r.parse(item); ok {
			rules = append(rules, rule)
		}
		required = append(required, r.required...)
	}
	return rules, required, len(items) > 0
}

// subject parses the selector of a spec. The last result is true if the spec selects no endpoint: it is for nodes, or it is unreadable and clusterwide. The
// result closed is true if its rules must allow nothing.
func (c *ciliumParser) subject(path string, fields map[string]json.RawMessage) (subject Selector, closed, selectsNone bool) {
	subject = c.everything()
	raw, found := fields["endpointSelector"]
	_, nodes := fields["nodeSelector"]
	switch {
	case nodes && !found && c.clusterwide():
		c.policy.add(Problem{Path: path + ".nodeSelector", Reason: ReasonUnsupported,
			Message: "policies for nodes are not supported: " + path + " does nothing; protect nodes by other means"})
		return subject, true, true
	case nodes && !found:
		c.policy.invalid(path+".nodeSelector", "a policy of a namespace cannot be for nodes: "+path+" does nothing; use endpointSelector")
		return subject, true, true
	case nodes:
		c.policy.invalid(path, "it has both endpointSelector and nodeSelector: its rules allow nothing; keep one of them")
		closed = true
	case !found && c.clusterwide():
		c.policy.invalid(path, "endpointSelector is missing: "+path+" selects no endpoint; write {} to mean every pod")
		return subject, true, true
	case !found:
		c.policy.invalid(path, "endpointSelector is missing: everything that it may mean is isolated, and its rules allow nothing; "+
			"write {} to mean every pod")
		return subject, true, false
	}
	chosen, err := ciliumSelector(raw)
	if err != nil && c.clusterwide() {
		c.policy.invalid(path+".endpointSelector", short(err)+": "+path+" selects no endpoint; correct it")
		return subject, true, true
	}
	if err != nil {
		c.policy.invalid(path+".endpointSelector", short(err)+
			": everything that it may mean is isolated, and its rules allow nothing; correct it")
		return subject, true, false
	}
	if !c.clusterwide() {
		c.stayHome(path, &chosen)
	}
	if slices.ContainsFunc(chosen.Requirements, func(r Requirement) bool { return r.Source == labels.SourceReserved && r.demands() }) {
		c.policy.add(Problem{Path: path + ".endpointSelector", Reason: ReasonUnsupported,
			Message: "it asks for a reserved label, which no endpoint has: it selects no endpoint; choose endpoints by labels of their own, " +
				"or all of them with {}"})
	}
	subject.Requirements = append(subject.Requirements, chosen.Requirements...)
	return subject, closed, false
}

// stayHome removes requirements for another namespace from the subject of a namespaced policy, which is enforced in its own namespace, as in Cilium. A
// subject that excludes the policy's namespace selects no endpoint.
func (c *ciliumParser) stayHome(path string, chosen *Selector) {
	here := map[string]string{sourceK8s + ":" + labels.KeyNamespace: c.policy.Ref.Namespace}
	var includes, excludes bool
	chosen.Requirements = slices.DeleteFunc(chosen.Requirements, func(r Requirement) bool {
		if r.Key != labels.KeyNamespace || r.Source != sourceK8s && r.Source != AnySource || r.Matches(here) {
			return false
		}
		includes, excludes = includes || r.Operator == In, excludes || r.Operator != In
		return r.Operator == In
	})
	switch {
	case excludes:
		c.policy.invalid(path+".endpointSelector", "it excludes the policy's own namespace: it selects no endpoint; move the policy to the namespace that it is for")
	case includes:
		c.policy.invalid(path+".endpointSelector", "it asks for another namespace than the policy's own: it is enforced in its own; "+
			"move the policy to that namespace")
	}
}

// defaultDeny returns the directions in which a spec isolates: the directions with rules, unless enableDefaultDeny overrides them.
func (c *ciliumParser) defaultDeny(path string, raw json.RawMessage, hasIngress, hasEgress bool) (ingress, egress bool) {
	var override struct {
		Ingress *bool `json:"ingress"`
		Egress  *bool `json:"egress"`
	}
	if len(raw) > 0 {
		if err := decode(raw, &override); err != nil {
			c.policy.invalid(path+".enableDefaultDeny", short(err)+": both directions are isolated; correct it")
			return true, true
		}
	}
	ingress, egress = hasIngress, hasEgress
	if override.Ingress != nil {
		ingress = *override.Ingress
	}
	if override.Egress != nil {
		egress = *override.Egress
	}
	return ingress, egress
}

// unknown returns the fields that are not in known, sorted.
func unknown(fields map[string]json.RawMessage, known ...string) (list []string) {
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		if !slices.Contains(known, field) {
			list = append(list, field)
		}
	}
	return list
}
