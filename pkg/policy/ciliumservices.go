package policy

import (
	"encoding/json"
	"errors"
	"net/netip"
	"strings"

	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// ServiceChoice refers to Services by their name, or by their labels.
type ServiceChoice struct {
	Namespace string    `json:"namespace,omitempty"` // empty: any
	Name      string    `json:"name,omitempty"`
	Labels    *Selector `json:"labels,omitempty"` // nil when the choice is by name; sources are k8s
}

// Service is what rules about a Service mean.
type Service struct {
	Namespace string
	Selects   string       // its selector, as in [k8s.Service]
	Addrs     []netip.Addr // of its EndpointSlices, when it has no selector
}

// Includes reports whether a Service is chosen.
func (c *ServiceChoice) Includes(s *k8s.Service) bool {
	switch {
	case c.Namespace != "" && c.Namespace != s.Namespace:
		return false
	case c.Labels == nil:
		return c.Name == s.Name
	}
	all := map[string]string{}
	for key, value := range pairs(s.AllLabels) {
		all[sourceK8s+":"+key] = value
	}
	return c.Labels.Matches(all)
}

// pairs reads "key=value,...", in which neither has one of these signs.
func pairs(text string) map[string]string {
	all := map[string]string{}
	for pair := range strings.SplitSeq(text, ",") {
		if key, value, found := strings.Cut(pair, "="); found {
			all[key] = value
		}
	}
	return all
}

// service reads a reference to Services. Pods behind one that has a selector are peers by this selector, as if it stood in the policy; addresses of one without
// are peers as CIDRs are. Ports of Services are not those of the rule.
func (r *ciliumRule) service(path string, item json.RawMessage) ([]Peer, error) {
	fields, err := object(item)
	if err != nil {
		return nil, err
	}
	for _, field := range unknown(fields, "k8sService", "k8sServiceSelector") {
		r.unsupported(path+"."+field, field+" is not supported", "use k8sService or k8sServiceSelector")
		return nil, errReported
	}
	if len(fields) != 1 {
		return nil, errors.New("it must have one of k8sService and k8sServiceSelector")
	}
	var o struct {
		Named struct {
			Name      string `json:"serviceName"`
			Namespace string `json:"namespace"`
		} `json:"k8sService"`
		Labelled struct {
			Selector  json.RawMessage `json:"selector"`
			Namespace string          `json:"namespace"`
		} `json:"k8sServiceSelector"`
	}
	if err := decode(item, &o); err != nil {
		return nil, err
	}
	choice := ServiceChoice{Name: o.Named.Name, Namespace: o.Named.Namespace}
	if _, byName := fields["k8sService"]; byName && choice.Name == "" {
		return nil, errors.New("serviceName is empty: name a Service")
	} else if !byName {
		choice.Namespace = o.Labelled.Namespace
		if choice.Labels, err = serviceSelector(o.Labelled.Selector); err != nil {
			return nil, err
		}
	}
	if choice.Namespace == "" && !r.deny {
		choice.Namespace = r.policy.Ref.Namespace // whoever may create Services in another namespace must not open peers to this one
	}
	r.policy.Services = append(r.policy.Services, choice)
	if r.env.Services == nil {
		return nil, nil
	}
	list := r.env.Services(choice)
	if len(list) == 0 {
		r.absent(path, "there is no such Service")
	}
	return r.behind(path, list), nil
}

// behind returns the peers of some Services.
func (r *ciliumRule) behind(path string, list []Service) (peers []Peer) {
	for _, s := range list {
		if s.Selects == "" {
			for _, addr := range s.Addrs {
				peers = append(peers, Peer{CIDR: netip.PrefixFrom(addr, addr.BitLen()), Scope: Outside})
			}
			continue
		}
		selector := &Selector{Requirements: append([]Requirement{inNamespace(s.Namespace)}, requirements(&k8s.Selector{MatchLabels: pairs(s.Selects)}, "")...)}
		if !r.policy.onlyKept(r.path+"."+path, selector, r.deny, r.env) {
			r.closed = true
		}
		peers = append(peers, Peer{Labels: selector})
	}
	return peers
}

// serviceSelector reads labels of Services, whatever source they name, as Cilium does. An empty one is an error.
func serviceSelector(raw json.RawMessage) (*Selector, error) {
	if len(raw) == 0 {
		return nil, errors.New("the selector is missing")
	}
	s, err := ciliumSelector(raw)
	if err == nil && len(s.Requirements) == 0 {
		err = errors.New("the selector is empty: choose Services by a label")
	}
	for i := range s.Requirements {
		s.Requirements[i].Source = sourceK8s
	}
	return &s, err
}

// AsksFor reports whether the policy may refer to a Service.
func (p *Policy) AsksFor(s *k8s.Service) bool {
	for i := range p.Services {
		if p.Services[i].Includes(s) {
			return true
		}
	}
	return false
}
