package k8sobjects

import (
	"maps"
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/waggle-net/waggle/pkg/printable"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// NetworkPolicy converts a NetworkPolicy. The row holds errors in its spec: if the whole policy were skipped because of one rule, its pods would not be
// isolated.
func NetworkPolicy(o *networkingv1.NetworkPolicy) *k8s.NetworkPolicy {
	spec := field.NewPath("spec")
	row := &k8s.NetworkPolicy{Namespace: o.Namespace, Name: o.Name, UID: string(o.UID), Labels: o.Labels, Annotations: o.Annotations}
	pods, err := selector(spec.Child("podSelector"), &o.Spec.PodSelector)
	if err != nil {
		row.Invalid = short(err)
	} else {
		row.PodSelector = *pods
	}
	for i, t := range o.Spec.PolicyTypes {
		switch t {
		case networkingv1.PolicyTypeIngress:
			row.IsIngress = true
		case networkingv1.PolicyTypeEgress:
			row.IsEgress = true
		default:
			row.IsIngress, row.IsEgress = true, true
			row.Invalid = short(field.NotSupported(spec.Child("policyTypes").Index(i), t,
				[]networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}))
		}
	}
	if len(o.Spec.PolicyTypes) == 0 { // default of the API server
		row.IsIngress, row.IsEgress = true, len(o.Spec.Egress) > 0
	}
	for i, r := range o.Spec.Ingress {
		row.Ingress = append(row.Ingress, validRule(spec.Child("ingress").Index(i), "from", r.From, r.Ports))
	}
	for i, r := range o.Spec.Egress {
		row.Egress = append(row.Egress, validRule(spec.Child("egress").Index(i), "to", r.To, r.Ports))
	}
	return row
}

// short limits an error text that quotes the object.
func short(err error) string { return printable.Short(err.Error(), maxInvalid) }

// maxInvalid is the maximum length of an error text, in bytes.
const maxInvalid = 300

// validRule converts a rule, or returns it with its error.
func validRule(path *field.Path, side string, peers []networkingv1.NetworkPolicyPeer,
	ports []networkingv1.NetworkPolicyPort) k8s.PolicyRule {
	rule, err := policyRule(path, side, peers, ports)
	if err != nil {
		return k8s.PolicyRule{Invalid: short(err)}
	}
	return rule
}

func policyRule(path *field.Path, side string, peers []networkingv1.NetworkPolicyPeer,
	ports []networkingv1.NetworkPolicyPort) (k8s.PolicyRule, error) {
	var rule k8s.PolicyRule
	for i := range peers {
		p, err := peer(path.Child(side).Index(i), &peers[i])
		if err != nil {
			return rule, err
		}
		rule.Peers = append(rule.Peers, p)
	}
	for i := range ports {
		p, err := policyPort(path.Child("ports").Index(i), &ports[i])
		if err != nil {
			return rule, err
		}
		rule.Ports = append(rule.Ports, p)
	}
	return rule, nil
}

func peer(path *field.Path, o *networkingv1.NetworkPolicyPeer) (k8s.Peer, error) {
	var p k8s.Peer
	var err error
	switch {
	case o.IPBlock != nil && (o.PodSelector != nil || o.NamespaceSelector != nil):
		return p, field.Forbidden(path, "may not specify both ipBlock and another peer")
	case o.IPBlock == nil && o.PodSelector == nil && o.NamespaceSelector == nil:
		return p, field.Required(path, "must specify a peer")
	case o.IPBlock != nil:
		return ipBlock(path.Child("ipBlock"), o.IPBlock)
	}
	if p.Pods, err = selector(path.Child("podSelector"), o.PodSelector); err != nil {
		return p, err
	}
	p.Namespaces, err = selector(path.Child("namespaceSelector"), o.NamespaceSelector)
	return p, err
}

func ipBlock(path *field.Path, o *networkingv1.IPBlock) (k8s.Peer, error) {
	block, err := parsePrefixes(path.Child("cidr"), []string{o.CIDR})
	if err != nil {
		return k8s.Peer{}, err
	}
	p := k8s.Peer{IPBlock: block[0]}
	if p.Except, err = parsePrefixes(path.Child("except"), o.Except); err != nil {
		return p, err
	}
	outside := func(x netip.Prefix) bool { return !p.IPBlock.Contains(x.Addr()) || x.Bits() <= p.IPBlock.Bits() }
	if i := slices.IndexFunc(p.Except, outside); i >= 0 {
		return p, field.Invalid(path.Child("except").Index(i), o.Except[i], "must be a strict subset of "+o.CIDR)
	}
	return p, nil
}

func policyPort(path *field.Path, o *networkingv1.NetworkPolicyPort) (k8s.PolicyPort, error) {
	p := k8s.PolicyPort{Protocol: "TCP"}
	var err error
	if o.Protocol != nil {
		if p.Protocol, err = protocol(path.Child("protocol"), *o.Protocol); err != nil {
			return p, err
		}
	}
	if o.Port != nil {
		if p.Port, err = portOrName(path.Child("port"), *o.Port); err != nil {
			return p, err
		}
	}
	if o.EndPort == nil {
		return p, nil
	}
	if o.Port == nil || o.Port.StrVal != "" || *o.EndPort < o.Port.IntVal {
		return p, field.Invalid(path.Child("endPort"), *o.EndPort, "needs a numeric port that is not greater")
	}
	p.EndPort, err = port(path.Child("endPort"), *o.EndPort, false)
	return p, err
}

func isNoLabelValue(value string) bool { return len(validation.IsValidLabelValue(value)) > 0 }

// selector preserves nil, which differs from an empty selector. A selector with an invalid label value matches no pod.
func selector(path *field.Path, o *metav1.LabelSelector) (*k8s.Selector, error) {
	if o == nil {
		return nil, nil
	}
	// In old objects the API server keeps invalid label values.
	valid := *o
	valid.MatchLabels = maps.Clone(o.MatchLabels)
	for key, value := range valid.MatchLabels {
		if isNoLabelValue(value) {
			valid.MatchLabels[key] = ""
		}
	}
	if err := list(metavalidation.ValidateLabelSelector(&valid, metavalidation.LabelSelectorValidationOptions{AllowInvalidLabelValueInSelector: true}, path)); err != nil {
		return nil, err
	}
	s := &k8s.Selector{}
	if len(o.MatchLabels) > 0 {
		s.MatchLabels = o.MatchLabels
	}
	for _, e := range o.MatchExpressions {
		expression := k8s.Expression{Key: e.Key, Operator: string(e.Operator)}
		if len(e.Values) > 0 { // an empty list equals none, because a copy on disk would not preserve it
			expression.Values = e.Values
		}
		if e.Operator == metav1.LabelSelectorOpNotIn && slices.ContainsFunc(e.Values, isNoLabelValue) {
			expression = k8s.Expression{Key: e.Key, Operator: string(metav1.LabelSelectorOpIn)} // matches no pod, like the other expressions with such a value
		}
		s.Expressions = append(s.Expressions, expression)
	}
	return s, nil
}
