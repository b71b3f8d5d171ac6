package policymap

import (
	"slices"
	"strings"

	"github.com/waggle-net/waggle/pkg/policy"
)

// anchor is what an identity must have to be chosen by the selectors that are filed under it: a label with a value, or
// one of any value. The zero anchor is for those that demand neither.
type anchor struct {
	source, key, value string
	exists             bool
}

// anchorsFor files a selector under its requirement under which the fewest others are.
func (c *selectors) anchorsFor(choice *policy.Selector) []anchor {
	var best []anchor
	least := -1
	for _, r := range choice.Requirements {
		var these []anchor
		switch r.Operator {
		case policy.In:
			for _, value := range r.Values {
				these = append(these, anchor{source: r.Source, key: r.Key, value: value})
			}
		case policy.Exists:
			these = []anchor{{source: r.Source, key: r.Key, exists: true}}
		default:
			continue
		}
		others := 0
		for _, a := range these {
			others += len(c.byAnchor[a])
		}
		if least < 0 || others < least {
			best, least = these, others
		}
	}
	if least < 0 {
		return []anchor{{}}
	}
	slices.SortFunc(best, func(a, b anchor) int { return strings.Compare(a.value, b.value) })
	return slices.Compact(best)
}

// anchorsOf are those that an identity of these labels has.
func anchorsOf(labels map[string]string) []anchor {
	out := make([]anchor, 1, 1+4*len(labels)) // the zero anchor
	for label, value := range labels {
		source, key, _ := strings.Cut(label, ":")
		for _, s := range [...]string{source, policy.AnySource} {
			out = append(out, anchor{source: s, key: key, value: value}, anchor{source: s, key: key, exists: true})
		}
	}
	return out
}
