package policy

import (
	"slices"
	"strings"

	"github.com/waggle-net/waggle/pkg/endpoint"
)

// Selector chooses sets of labels: all requirements must hold. The zero value chooses every set.
type Selector struct {
	Requirements []Requirement `json:"requirements,omitempty"`
}

// Operator of a [Requirement].
type Operator string

const (
	In           Operator = "In"
	NotIn        Operator = "NotIn" // also true when the label is missing
	Exists       Operator = "Exists"
	DoesNotExist Operator = "DoesNotExist"
)

// AnySource stands for a label of any source in a [Requirement], except the source reserved, which must be named.
const AnySource = "any"

// Requirement is one demand on a set of labels.
type Requirement struct {
	Source   string   `json:"source"` // "k8s", "reserved", ... or [AnySource]; never empty
	Key      string   `json:"key"`    // without its source
	Operator Operator `json:"operator"`
	Values   []string `json:"values,omitempty"`
}

// Matches tells whether the selector chooses a set of labels, which maps "source:key" to the value.
func (s *Selector) Matches(labels map[string]string) bool {
	for i := range s.Requirements {
		if !s.Requirements[i].Matches(labels) {
			return false
		}
	}
	return true
}

// Matches tells whether a set of labels meets the demand. An operator that does not exist is never met.
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

// find tells whether the label is there, and whether it has one of the values. Of any source, several labels may be meant.
func (r *Requirement) find(labels map[string]string) (exists, in bool) {
	if r.Source != AnySource {
		value, found := labels[r.Source+":"+r.Key]
		return found, found && slices.Contains(r.Values, value)
	}
	for label, value := range labels {
		if source, key, _ := strings.Cut(label, ":"); key == r.Key && source != endpoint.SourceReserved {
			exists = true
			in = in || slices.Contains(r.Values, value)
		}
	}
	return exists, in
}

// String is as people write a requirement: "k8s:app in (a, b)".
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

// String lists the requirements; "every label set" when there are none.
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
