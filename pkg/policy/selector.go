package policy

import (
	"slices"
	"strings"

	"github.com/waggle-net/waggle/pkg/labels"
)

// Selector selects the sets of labels that meet all requirements. The zero value selects every set.
type Selector struct {
	Requirements []Requirement `json:"requirements,omitempty"`
}

// Operator is the comparison of a [Requirement].
type Operator string

const (
	In           Operator = "In"
	NotIn        Operator = "NotIn" // also true when the label is missing
	Exists       Operator = "Exists"
	DoesNotExist Operator = "DoesNotExist"
)

// AnySource in a [Requirement] matches labels of any source except reserved, which must be named.
const AnySource = "any"

// Requirement is one condition on a set of labels.
type Requirement struct {
	Source   string   `json:"source"` // "k8s", "reserved", ... or [AnySource]; never empty
	Key      string   `json:"key"`    // without its source
	Operator Operator `json:"operator"`
	Values   []string `json:"values,omitempty"`
}

// Matches reports whether the selector selects a set of labels, which maps "source:key" to the value.
func (s *Selector) Matches(labels map[string]string) bool {
	for i := range s.Requirements {
		if !s.Requirements[i].Matches(labels) {
			return false
		}
	}
	return true
}

// Matches reports whether a set of labels meets the requirement. A requirement with an unknown operator is never met.
func (r *Requirement) Matches(labels map[string]string) bool {
	exists, in := r.find(labels)
	switch r.Operator {
	case In:
		return in
	case NotIn:
		return !in
	case Exists:
		return exists
	case DoesNotExist:
		return !exists
	}
	return false
}

// find reports whether the label exists, and whether it has one of the values. With [AnySource], several labels may match.
func (r *Requirement) find(set map[string]string) (exists, in bool) {
	if r.Source != AnySource {
		value, found := set[r.Source+":"+r.Key]
		return found, found && slices.Contains(r.Values, value)
	}
	for label, value := range set {
		if source, key, _ := strings.Cut(label, ":"); key == r.Key && source != labels.SourceReserved {
			exists = true
			in = in || slices.Contains(r.Values, value)
		}
	}
	return exists, in
}

// String returns a readable form: "k8s:app in (a, b)".
func (r *Requirement) String() string {
	label := r.Source + ":" + r.Key
	switch r.Operator {
	case In, NotIn:
		operator := " in ("
		if r.Operator == NotIn {
			operator = " not in ("
		}
		if len(r.Values) == 1 && r.Operator == In {
			return label + "=" + r.Values[0]
		}
		return label + operator + strings.Join(r.Values, ", ") + ")"
	case Exists:
		return label
	case DoesNotExist:
		return "no " + label
	}
	return label + " " + string(r.Operator)
}

// String lists the requirements. Without requirements it returns "every label set".
func (s *Selector) String() string {
	if len(s.Requirements) == 0 {
		return "every label set"
	}
	texts := make([]string, 0, len(s.Requirements))
	for i := range s.Requirements {
		texts = append(texts, s.Requirements[i].String())
	}
	return strings.Join(texts, " and ")
}
