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

// peerSelector reads a selector of peers. One that names no namespace means the policy's own or, in a policy of the whole
// cluster, pods of any namespace. Whoever names a reserved label means no pods, which have none.
func (c *ciliumParser) peerSelector(raw json.RawMessage) (*Selector, error) {
	s, err := ciliumSelector(raw)
	if err != nil {
		return nil, err
	}
	var reserved, namespace, namespaceLabel bool
	for _, r := range s.Requirements {
		switch r.Source {
		case endpoint.SourceReserved:
			reserved = true
		case sourceK8s, AnySource:
			namespace = namespace || r.Key == labels.KeyNamespace
			namespaceLabel = namespaceLabel || strings.HasPrefix(r.Key, labels.KeyNamespaceLabels)
		}
	}
	clusterwide := c.policy.Ref.Kind == Clusterwide
	switch {
	case reserved || namespace:
	case clusterwide:
		s.Requirements = append(s.Requirements, inSomeNamespace())
	case !namespaceLabel:
		s.Requirements = append(s.Requirements, inNamespace(c.policy.Ref.Namespace))
	}
	return &s, nil
}
