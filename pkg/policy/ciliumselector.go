package policy

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/waggle-net/waggle/pkg/endpoint"
	"github.com/waggle-net/waggle/pkg/labels"
)

// ciliumSelector reads a selector of Cilium's, whose keys may begin with a source and a colon. Without one, any is meant.
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

// check holds a requirement to what its operator needs.
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

// mention is how a selector names labels of a kind.
type mention struct {
	named    bool
	demanded bool // it asks for one, so that whoever has none is not chosen; NotIn and DoesNotExist only exclude
}

func (m *mention) add(r *Requirement) {
	m.named = true
	m.demanded = m.demanded || r.demands()
}

// demands tells whether who lacks the label is not chosen.
func (r *Requirement) demands() bool { return r.Operator == In || r.Operator == Exists }

// peerSelector reads a selector of peers. One that names no namespace means the policy's own or, in a policy of the whole
// cluster, pods of any namespace. Whoever demands a reserved label means no pods, which have none.
//
// A demand that only excludes is met by nodes and by the world too, which have no namespace. A rule that allows means pods by
// it, or a slip of a tenant's would open their pods to the internet; one that denies means all whom it does not exclude.
func (r *ciliumRule) peerSelector(raw json.RawMessage) (*Selector, error) {
	s, err := ciliumSelector(raw)
	if err != nil {
		return nil, err
	}
	var reserved, namespace, namespaceLabel mention
	for i := range s.Requirements {
		q := &s.Requirements[i]
		switch {
		case q.Source == endpoint.SourceReserved:
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
