package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// Bounds of k8sServiceSelector. The other bounds of toServices are divided evenly among the selectors of a policy: the owners of Services that one of them chooses
// must not use up what the others need. A Service beyond a bound matches no peer.
const (
	maxServiceItems   = 20     // selectors of Services in one policy; rules beyond it fail closed
	maxListedServices = 10_000 // Services of a namespace, in the order of their names, among which a selector chooses
)

// fieldOfItems is the field of an item with a selector.
const fieldOfItems = "k8sServiceSelector"

// serviceItems returns the number of times that the text of a policy has the field of selectors, at most [maxServiceItems].
func serviceItems(o *cilium.Policy) int {
	field := []byte(fieldOfItems)
	return min(bytes.Count(o.Spec, field)+bytes.Count(o.Specs, field), maxServiceItems)
}

// serviceList are the Services of a namespace among which selectors choose.
type serviceList struct {
	services   []labelledService
	beyond     bool // the namespace has more Services
	unreadable int  // Services of the list whose labels cannot be read, which are not in services
	items      int  // number of selectors that choose among them
}

type labelledService struct {
	name   string
	labels map[string]string // by "source:key", with the source k8s
}

// servicesByLabels reads an item that chooses Services of a namespace by their labels, and returns the peers that these Services stand for.
func (r *ciliumRule) servicesByLabels(path string, item json.RawMessage) ([]Peer, error) {
	c := &r.services
	if c.items++; c.items > c.written {
		return nil, fmt.Errorf("the policy has more than %d items %s, or one with escapes in this name", maxServiceItems, fieldOfItems)
	}
	var o struct {
		Selector  json.RawMessage `json:"selector"`
		Namespace string          `json:"namespace"`
	}
	if err := decode(item, &o); err != nil {
		return nil, err
	}
	if o.Selector == nil {
		return nil, errors.New("the selector is missing: write {} to choose all Services of the namespace")
	}
	selector, err := serviceSelector(o.Selector)
	if err != nil {
		return nil, err
	}
	namespace, found := r.namespaceOfServices(path, o.Namespace)
	if !found {
		return nil, errReported
	}
	list := r.servicesIn(namespace)
	if r.env.ServicesUnread {
		r.unread(path, "Services", "permissions")
		return nil, errReported
	}
	r.incomplete(path, namespace, list)
	return r.chosenServices(path, namespace, list, selector)
}

// chosenServices returns the peers of the Services that a selector chooses.
func (r *ciliumRule) chosenServices(path, namespace string, list *serviceList, selector *Selector) (peers []Peer, err error) {
	share := func(bound int) int { return bound / r.services.written }
	budget := &serviceBudget{whose: "the Services that the selector chooses", nothing: "this Service allows nothing", maxRequirements: share(maxServiceRequirements),
		maxAddresses: share(maxServiceAddresses)}
	if r.deny {
		budget.nothing = "this Service denies nothing"
	}
	chosen, last := 0, ""
	var many manyAddresses
	for i := range list.services {
		one := &list.services[i]
		if !selector.Matches(one.labels) {
			continue
		}
		if chosen++; chosen > share(maxServices) {
			r.policy.add(Problem{Path: r.path + "." + path, Reason: ReasonUnsupported, Message: fmt.Sprintf(
				"the selector chooses more than %d Services: Services after %s in the order of their names match nothing; choose fewer, or split the policy", chosen-1, quote(last))})
			break
		}
		last = one.name
		name := ServiceName{Namespace: namespace, Name: one.name}
		more, err := r.peersOfService(path, name, r.readService(name), budget)
		var beyond manyAddresses
		switch {
		case errors.As(err, &beyond) && many == "":
			many = beyond // reported once
			peers = append(peers, r.beyond(path, many)...)
		case err != nil && beyond == "":
			return nil, err
		}
		peers = append(peers, more...)
	}
	if chosen == 0 {
		r.absent(path, "no Service of the namespace "+quote(namespace)+" has these labels")
	}
	return peers, nil
}

// servicesIn lists the Services of a namespace once, and records that the policy depends on their names and labels.
func (r *ciliumRule) servicesIn(namespace string) *serviceList {
	c := &r.services
	list := c.lists[namespace]
	if list != nil {
		list.items++
		return list
	}
	if c.lists == nil {
		c.lists = map[string]*serviceList{}
	}
	list = &serviceList{items: 1}
	c.lists[namespace] = list
	r.policy.ServiceNamespaces = append(r.policy.ServiceNamespaces, namespace)
	if r.env.ServicesIn == nil || r.env.ServicesUnread {
		return list
	}
	n := 0
	for name, text := range r.env.ServicesIn(namespace) {
		if n++; n > maxListedServices {
			list.beyond = true
			break
		}
		labels, err := labelsOfService(text)
		if err != nil {
			list.unreadable++
			continue
		}
		list.services = append(list.services, labelledService{name, labels})
	}
	return list
}

// incomplete reports Services that no selector can choose.
func (r *ciliumRule) incomplete(path, namespace string, list *serviceList) {
	report := func(what, advice string) {
		r.policy.add(Problem{Path: r.path + "." + path, Reason: ReasonUnsupported, Message: what + ": such Services match nothing; " + advice})
	}
	if list.beyond {
		report(fmt.Sprintf("the namespace %s has more than %d Services, and selectors do not choose among those beyond, in the order of their names", quote(namespace), maxListedServices),
			"refer to Services by name")
	}
	if list.unreadable > 0 {
		report(fmt.Sprintf("%d Services of the namespace %s have too many labels to be chosen by them", list.unreadable, quote(namespace)), "remove labels from them")
	}
}

// labelsOfService reads [k8s.Service.Labelled].
func labelsOfService(text string) (map[string]string, error) {
	if text == "" {
		return nil, nil
	}
	if text == k8s.TooManyLabels {
		return nil, errors.New("they are not kept")
	}
	labels := make(map[string]string, strings.Count(text, ",")+1)
	for pair := range strings.SplitSeq(text, ",") {
		key, value, found := strings.Cut(pair, "=")
		if !found {
			return nil, errors.New("they are malformed at " + quote(pair))
		}
		labels[sourceK8s+":"+key] = value
	}
	return labels, nil
}

// serviceSelector parses a selector of Services. Labels of Services have the source k8s, which a key may name.
func serviceSelector(raw json.RawMessage) (*Selector, error) {
	s, err := ciliumSelector(raw)
	if err != nil {
		return nil, err
	}
	for i := range s.Requirements {
		q := &s.Requirements[i]
		if q.Source != AnySource && q.Source != sourceK8s {
			return nil, errors.New("the key " + quote(q.Source+":"+q.Key) + " has another source than k8s: labels of Services have none")
		}
		q.Source = sourceK8s
	}
	return &s, nil
}

// finishServices sorts the Services and the namespaces to which a parsed policy refers, and records the number of references to each.
func (c *ciliumParser) finishServices() {
	p := c.policy
	slices.SortFunc(p.Services, ServiceName.Compare)
	for _, name := range p.Services {
		p.references = append(p.references, c.services.chosen[name].references)
	}
	slices.Sort(p.ServiceNamespaces)
	for _, namespace := range p.ServiceNamespaces {
		p.choices = append(p.choices, c.services.lists[namespace].items)
	}
}
