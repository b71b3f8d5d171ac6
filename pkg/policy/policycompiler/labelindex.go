package policycompiler

import (
	"slices"
	"strings"

	"github.com/waggle-net/waggle/pkg/policy"
)

// mostListed is the largest number of identities that are listed for one label.
const mostListed = 1000

// labelIndex lists the identities with a label, for labels that at most [labelIndex.most] identities have. Most policies name an application, which few
// identities are of, so that the time for a new selector does not grow with the cluster.
type labelIndex struct {
	most int
	with map[keyValue]labelled
}

// keyValue is a label without its source, so that the index serves requirements with any source too.
type keyValue struct{ key, value string }

// labelled are the identities with a label. An identity that has the label from two sources counts twice.
type labelled struct {
	numbers []uint32 // in no order; nil if they are not listed
	count   int      // they are listed while this is the length of numbers
}

func newLabelIndex() labelIndex {
	return labelIndex{most: mostListed, with: map[keyValue]labelled{}}
}

func (l labelled) listed() bool { return l.count == len(l.numbers) }

// add adds an identity with its labels. The caller must remove its previous labels before.
func (x *labelIndex) add(number uint32, labels map[string]string) {
	for label, value := range labels {
		_, key, _ := strings.Cut(label, ":")
		l := x.with[keyValue{key, value}]
		if l.listed() && l.count < x.most {
			l.numbers = append(l.numbers, number)
		} else {
			l.numbers = nil // until no identity has the label
		}
		l.count++
		x.with[keyValue{key, value}] = l
	}
}

// remove removes an identity. The labels must be those with which it was added.
func (x *labelIndex) remove(number uint32, labels map[string]string) {
	for label, value := range labels {
		_, key, _ := strings.Cut(label, ":")
		l := x.with[keyValue{key, value}]
		if l.listed() {
			last := len(l.numbers) - 1
			l.numbers[slices.Index(l.numbers, number)] = l.numbers[last]
			l.numbers = l.numbers[:last]
		}
		if l.count--; l.count == 0 {
			delete(x.with, keyValue{key, value})
			continue
		}
		x.with[keyValue{key, value}] = l
	}
}

// candidates returns identities that include all that a choice matches, sorted: those with the label of its narrowest requirement. listed is false if each
// requirement may be met without a label, by a label that is not listed, or by more than limit identities.
func (x *labelIndex) candidates(choice *policy.Selector, limit int) (numbers []uint32, listed bool) {
	var narrowest *policy.Requirement
	for i := range choice.Requirements {
		if r := &choice.Requirements[i]; r.Operator == policy.In {
			if n, all := x.count(r); all && n <= limit {
				narrowest, limit = r, n
			}
		}
	}
	if narrowest == nil {
		return nil, false
	}
	for _, value := range narrowest.Values {
		numbers = append(numbers, x.with[keyValue{narrowest.Key, value}].numbers...)
	}
	slices.Sort(numbers)
	return slices.Compact(numbers), true
}

// count returns the number of identities with a value of a requirement, and reports whether all of them are listed.
func (x *labelIndex) count(r *policy.Requirement) (n int, listed bool) {
	for _, value := range r.Values {
		l := x.with[keyValue{r.Key, value}]
		if !l.listed() {
			return 0, false
		}
		n += l.count
	}
	return n, true
}
