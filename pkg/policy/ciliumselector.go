package policy

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/waggle-net/waggle/pkg/labels"
)

// ciliumSelector parses a Cilium selector. A key may begin with a source and a colon; a key without a source matches labels of any source.
func ciliumSelector(raw json.RawMessage) (Selector, error) {
	var o struct {
		MatchLabels      map[string]string `json:"matchLabels"`
		MatchExpressions []struct {
			Key      string   `json:"key"`
			Operator Operator `json:"operator"`
			Values   []string `json:"values"`
		} `json:"matchExpressions"`
	}
	if hasNull(raw) {
		return Selector{}, errors.New("there is a null in it")
	}
	if err := decode(raw, &o); err != nil {
		return Selector{}, err
	}
	var s Selector
	for _, key := range slices.Sorted(maps.Keys(o.MatchLabels)) {
		r := Requirement{Operator: In, Values: []string{o.MatchLabels[key]}}
		if err := r.setLabel(key); err != nil {
			return Selector{}, err
		}
		s.Requirements = append(s.Requirements, r)
	}
	for _, e := range o.MatchExpressions {
		r := Requirement{Operator: e.Operator, Values: e.Values}
		if err := errors.Join(r.setLabel(e.Key), r.check()); err != nil {
			return Selector{}, err
		}
		s.Requirements = append(s.Requirements, r)
	}
	return s, nil
}

func (r *Requirement) setLabel(label string) error {
	source, key, found := strings.Cut(label, ":")
	if !found {
		source, key = AnySource, label
	}
	if source == "" || key == "" {
		return errors.New("the key " + quote(label) + " is none: want key or source:key")
	}
	r.Source, r.Key = source, key
	return nil
}

// check validates the number of values for the operator.
func (r *Requirement) check() error {
	switch r.Operator {
	case In, NotIn:
		if len(r.Values) == 0 {
			return errors.New("the operator " + string(r.Operator) + " needs values")
		}
	case Exists, DoesNotExist:
		if len(r.Values) > 0 {
			return errors.New("the operator " + string(r.Operator) + " takes no values")
		}
	default:
		return errors.New("the operator " + quote(string(r.Operator)) + " does not exist")
	}
	return nil
}

// mention records how a selector refers to labels of one kind.
type mention struct {
	named    bool
	demanded bool // a requirement needs such a label (In, Exists); NotIn and DoesNotExist only exclude
}

func (m *mention) add(r *Requirement) {
	m.named = true
	m.demanded = m.demanded || r.demands()
}

// demands reports whether the requirement fails without the label.
func (r *Requirement) demands() bool { return r.Operator == In || r.Operator == Exists }

// peerSelector parses a selector of peers. A selector that names no namespace selects pods in the policy's namespace or, in a clusterwide policy, pods of
// any namespace. A selector that requires a reserved label has no such restriction; pods have no reserved labels.
//
// A selector with only exclusions also matches nodes and the world, which have no namespace. In an allow rule it is limited to pods; otherwise a mistake of
// a tenant would open pods to the internet. In a deny rule it matches every peer that it does not exclude; a clusterwide deny with only labels of
// namespaces matches pods.
func (r *ciliumRule) peerSelector(raw json.RawMessage) (*Selector, error) {
	s, err := ciliumSelector(raw)
	if err != nil {
		return nil, err
	}
	var reserved, namespace, namespaceLabel mention
	for i := range s.Requirements {
		q := &s.Requirements[i]
		switch {
		case q.Source == labels.SourceReserved:
			reserved.add(q)
		case q.Source != sourceK8s && q.Source != AnySource:
		case q.Key == labels.KeyNamespace:
			namespace.add(q)
		case strings.HasPrefix(q.Key, labels.KeyNamespaceLabels):
			namespaceLabel.add(q)
		}
	}
	settles := func(m mention) bool { return m.demanded || r.deny && m.named }
	switch {
	case settles(reserved) || settles(namespace):
	case r.policy.Ref.Kind == Clusterwide:
		s.Requirements = append(s.Requirements, inSomeNamespace())
	case !namespace.named && !namespaceLabel.named:
		s.Requirements = append(s.Requirements, inNamespace(r.policy.Ref.Namespace))
	case !settles(namespaceLabel):
		s.Requirements = append(s.Requirements, inSomeNamespace())
	}
	return &s, nil
}
