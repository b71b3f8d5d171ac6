package policy_test

import (
	"slices"
	"strings"

	"github.com/waggle-net/waggle/pkg/policy/policytest"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
)

// endpoint evaluates a selector of peers. Peers are in the policy's namespace unless the selector names one. An allow whose requirements on namespaces and
// reserved labels all exclude matches only pods; a deny with such requirements is interpreted literally.
func (n naive) endpoint(p *cilium.Policy, selector fields, deny bool) ternary {
	namespace, isPod := n.q.Peer.Labels["k8s:io.kubernetes.pod.namespace"]
	hidden := untold
	switch {
	case deny:
		hidden = yes
	case n.meant:
		hidden = no
	}
	chosen := n.selects(selector, n.q.Peer.Labels, hidden)
	special, byNamespace, byItsLabels := wordsAbout(selector, "reserved:"), wordsAbout(selector, "io.kubernetes.pod.namespace"),
		wordsAbout(selector, "io.cilium.k8s.namespace.labels")
	switch {
	case special == presence, byNamespace == presence:
		return chosen
	case deny && special+byNamespace != silence:
		return chosen
	case p.Namespace == "":
		return both(chosen, of(isPod))
	case byNamespace == silence && byItsLabels == silence:
		return both(chosen, of(namespace == p.Namespace))
	case deny:
		return chosen
	}
	return both(chosen, of(isPod))
}

// Requirements of a selector on labels of one kind: none, only exclusions, or at least one that needs the label.
const (
	silence = iota
	absence
	presence
)

func wordsAbout(selector fields, what string) (words int) {
	about := func(key string) bool {
		for _, source := range []string{"", "k8s:", "any:"} {
			if strings.HasPrefix(key, source+what) {
				return true
			}
		}
		return false
	}
	match, _ := selector["matchLabels"].(fields)
	for key := range match {
		if about(key) {
			return presence
		}
	}
	for _, item := range listOf(selector["matchExpressions"]) {
		if e := item.(fields); about(e["key"].(string)) {
			words = max(words, absence)
			if operator := e["operator"].(string); operator != "NotIn" && operator != "DoesNotExist" {
				words = presence
			}
		}
	}
	return words
}

// selects evaluates a Cilium selector. All labels of a subject are known; hidden is then no. The hidden labels of a peer are unknown: a requirement for
// their absence has the result hidden. If hidden is yes, every requirement on them has that result.
func (n naive) selects(selector fields, labels map[string]string, hidden ternary) ternary {
	result := yes
	demand := func(label, operator string, values []string) {
		source, key, found := strings.Cut(label, ":")
		if !found {
			source, key = "any", label
		}
		exists, listed := false, false
		for full, value := range labels {
			s, k, _ := strings.Cut(full, ":")
			if k == key && (s == source || source == "any" && s != "reserved") {
				exists = true
				listed = listed || slices.Contains(values, value)
			}
		}
		met := map[string]ternary{"In": of(listed), "NotIn": of(!listed), "Exists": of(exists), "DoesNotExist": of(!exists), "Like": untold}[operator]
		if key == policytest.HiddenKey && hidden != no && (hidden == yes || operator == "NotIn" || operator == "DoesNotExist") {
			met = hidden
		}
		result = both(result, met)
	}
	if match, found := selector["matchLabels"].(fields); found {
		for label, value := range match {
			demand(label, "In", []string{value.(string)})
		}
	}
	for _, item := range listOf(selector["matchExpressions"]) {
		e := item.(fields)
		var values []string
		for _, v := range listOf(e["values"]) {
			values = append(values, v.(string))
		}
		demand(e["key"].(string), e["operator"].(string), values)
	}
	return result
}
