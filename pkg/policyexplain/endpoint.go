package policyexplain

import (
	"maps"
	"slices"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/labels"
	"github.com/waggle-net/waggle/pkg/policy/policycompiler"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/identities"
	"github.com/waggle-net/waggle/pkg/tables/policyclasses"
	"github.com/waggle-net/waggle/pkg/tables/policyentries"
)

// EndpointPolicy returns the policy of an endpoint whose entries are complete in the kernel. While there is none, the identity is 0.
func (v *View) EndpointPolicy(ep *endpoints.Endpoint) models.EndpointPolicy {
	row, found := endpointpolicies.Of(v.txn, v.EndpointPolicies, ep.ID, ep.AttachmentID())
	if !found {
		return models.EndpointPolicy{PolicyEnabled: models.EndpointPolicyPolicyEnabledNone}
	}
	m := models.EndpointPolicy{ID: int64(row.Identity), PolicyRevision: int64(row.Revision), PolicyEnabled: enabled(row)}
	ingress, egress := v.summary(row.Ingress.Enforced.ID), v.summary(row.Egress.Enforced.ID)
	m.AllowedIngressIdentities, m.DeniedIngressIdentities, m.L4.Ingress = ingress.allowed, ingress.denied, ingress.l4
	m.AllowedEgressIdentities, m.DeniedEgressIdentities, m.L4.Egress = egress.allowed, egress.denied, egress.l4
	return m
}

// enabled returns the directions in which connections that no rule allows are denied; with the prefix audit- if they are denied only in audit mode.
func enabled(row *endpointpolicies.EndpointPolicy) models.EndpointPolicyPolicyEnabled {
	switch in, out := row.Ingress.Isolated, row.Egress.Isolated; {
	case in && out:
		return models.EndpointPolicyPolicyEnabledBoth
	case in:
		return models.EndpointPolicyPolicyEnabledIngress
	case out:
		return models.EndpointPolicyPolicyEnabledEgress
	}
	switch in, out := row.Ingress.Audited.ID != 0, row.Egress.Audited.ID != 0; {
	case in && out:
		return models.EndpointPolicyPolicyEnabledAuditBoth
	case in:
		return models.EndpointPolicyPolicyEnabledAuditIngress
	case out:
		return models.EndpointPolicyPolicyEnabledAuditEgress
	}
	return models.EndpointPolicyPolicyEnabledNone
}

// summary is the content of a policy's entries in the API's terms.
type summary struct {
	allowed, denied []int64 // identities of entries, including members of classes, regardless of the port
	l4              []models.PolicyRule
}

// summary returns the summary of a policy id. Endpoints share policy ids, so the view caches the result.
func (v *View) summary(id uint32) summary {
	if s, done := v.summaries[id]; done {
		return s
	}
	row, _, found := v.Entries.Get(v.txn, policyentries.ByID(id))
	var s summary
	if found && row.Compiled != nil {
		s = v.summarize(row.Compiled)
	}
	if v.summaries == nil {
		v.summaries = map[uint32]summary{}
	}
	v.summaries[id] = s
	return s
}

func (v *View) summarize(c *policycompiler.Compiled) summary {
	allowed, denied, rules := map[int64]bool{}, map[int64]bool{}, map[string]map[string]bool{}
	for e := range c.Entries() {
		of := allowed
		if e.Deny {
			of = denied
		}
		switch e.Kind {
		case policycompiler.Identity:
			of[int64(e.Identity)] = true
		case policycompiler.Class:
			for _, id := range v.members(e.Identity) {
				of[int64(id)] = true
			}
		}
		if e.Protocol == 0 {
			continue
		}
		port := e.PortText()
		if rules[port] == nil {
			rules[port] = map[string]bool{}
		}
		if rule, found := c.Rule(e.Rule); found {
			rules[port][rule.Policy.String()+" "+rule.Path] = true
		}
	}
	s := summary{allowed: slices.Sorted(maps.Keys(allowed)), denied: slices.Sorted(maps.Keys(denied))}
	for _, port := range slices.Sorted(maps.Keys(rules)) {
		m := models.PolicyRule{Rule: port}
		for _, from := range slices.Sorted(maps.Keys(rules[port])) {
			m.DerivedFromRules = append(m.DerivedFromRules, []string{from})
		}
		s.l4 = append(s.l4, m)
	}
	return s
}

// members lists the identities of a class, unsorted.
func (v *View) members(number uint32) (list []uint32) {
	class, _, found := v.Classes.Get(v.txn, policyclasses.ByNumber(number))
	if !found {
		return nil
	}
	if v.pods == nil {
		v.pods = map[string][]*identities.Identity{}
		for id := range v.Identities.All(v.txn) {
			if namespace := id.Labels[labels.SourceK8s+":"+labels.KeyNamespace]; namespace != "" {
				v.pods[namespace], v.pods[""] = append(v.pods[namespace], id), append(v.pods[""], id)
			}
		}
	}
	for _, id := range v.pods[class.Namespace] {
		if policycompiler.InClass(id.ID, id.Labels, class.Labels) {
			list = append(list, id.ID)
		}
	}
	return list
}
