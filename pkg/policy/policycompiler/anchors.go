package policycompiler

import (
	"iter"
	"slices"
	"strings"

	"github.com/waggle-net/waggle/pkg/policy"
)

// anchor is a label that an identity needs to match the selectors that are filed under it: a label with a given value, or with any value. The zero anchor is
// for selectors that require neither.
type anchor struct {
	source, key, value string
	exists             bool
}

// anchored holds values by the anchors of their selectors. An identity or an endpoint is compared only with the values under the anchors of its labels.
type anchored[V comparable] map[anchor][]V

// file adds a value under the requirement of its selector that has the fewest values so far, and returns the anchors for [anchored.remove].
func (m anchored[V]) file(v V, choice *policy.Selector) []anchor {
	anchors := m.anchorsFor(choice)
	for _, a := range anchors {
		m[a] = append(m[a], v)
	}
	return anchors
}

func (m anchored[V]) remove(v V, anchors []anchor) {
	for _, a := range anchors {
		m.removeUnder(a, func(one V) bool { return one == v })
	}
}

// removeFunc removes the values for which gone returns true, under some anchors.
func (m anchored[V]) removeFunc(anchors map[anchor]struct{}, gone func(V) bool) {
	for a := range anchors {
		m.removeUnder(a, gone)
	}
}

func (m anchored[V]) removeUnder(a anchor, gone func(V) bool) {
	if m[a] = slices.DeleteFunc(m[a], gone); len(m[a]) == 0 {
		delete(m, a)
	}
}

func (m anchored[V]) anchorsFor(choice *policy.Selector) []anchor {
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
			others += len(m[a])
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

// anchorsOf yields the anchors of an identity with these labels. An identity does not keep them: they need a kilobyte for four labels.
func anchorsOf(labels map[string]string) iter.Seq[anchor] {
	return func(yield func(anchor) bool) {
		if !yield(anchor{}) {
			return
		}
		for label, value := range labels {
			source, key, _ := strings.Cut(label, ":")
			for _, s := range [...]string{source, policy.AnySource} {
				if !yield(anchor{source: s, key: key, value: value}) || !yield(anchor{source: s, key: key, exists: true}) {
					return
				}
			}
		}
	}
}
