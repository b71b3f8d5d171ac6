package policy

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/waggle-net/waggle/pkg/labels"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// ServiceName names a Service.
type ServiceName struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// String is "namespace/name".
func (n ServiceName) String() string { return n.Namespace + "/" + n.Name }

// Compare orders names.
func (n ServiceName) Compare(o ServiceName) int {
	return cmp.Or(strings.Compare(n.Namespace, o.Namespace), strings.Compare(n.Name, o.Name))
}

// Service is the meaning of a Service for policies. Equal values have the same meaning. The zero value is a Service that does not exist.
type Service struct {
	Found    bool
	External bool   // the type is ExternalName
	Selects  string // the selector, "key=value,..."; empty without one; a short text that is no selector in place of one with too many labels
}

// ServiceOf returns the meaning of a row; nil is a Service that does not exist.
func ServiceOf(row *k8s.Service) Service {
	if row == nil {
		return Service{}
	}
	s := Service{Found: true, External: row.Type == "ExternalName", Selects: row.Selects}
	if n := strings.Count(s.Selects, ",") + 1; n > maxServiceSelector {
		s.Selects = tooManyLabels + strconv.Itoa(n)
	}
	return s
}

// tooManyLabels begins a text that stands for a selector with too many labels; their number follows. No key of a label has a colon.
const tooManyLabels = "labels:"

// Bounds of toServices. The text of one policy may be 1 MB. Rules beyond the bounds of this text fail closed. The owners of Services write their selectors, so a
// reference beyond a bound of the selectors matches no peer.
const (
	maxServices            = 1000   // different Services in one policy
	maxServicePeers        = 4000   // references to Services in all rules of one policy
	maxServiceSelector     = 20     // labels in the selector of one Service
	maxServiceRequirements = 10_000 // requirements in the selectors of all references of the allow rules, and of the deny rules: the labels, and the namespace of the Service
)

// serviceReader reads each Service of a policy once.
type serviceReader struct {
	chosen       map[ServiceName]*chosenService
	peers        int          // references so far
	requirements map[bool]int // in the selectors of these references, by whether the rule denies: references of allow rules must not use up the bound of deny rules
}

// chosenService is the peer that a Service stands for. All rules of a policy share it.
type chosenService struct {
	Service
	references int
	labels     *Selector // nil without a selector that can be read
	denied     *Selector // the same for rules that deny, without labels that are not part of identities
	err        error     // of the selector
}

// service reads one item of toServices. Without a namespace, Cilium chooses the Services of this name in all namespaces. An allow rule of a namespaced policy
// then means the Service of the policy's own namespace; a deny rule would deny less than in Cilium, so the namespace is required.
func (r *ciliumRule) service(path string, item json.RawMessage) ([]Peer, error) {
	var o struct {
		ByName *struct {
			Name      string `json:"serviceName"`
			Namespace string `json:"namespace"`
		} `json:"k8sService"`
		ByLabels json.RawMessage `json:"k8sServiceSelector"`
	}
	if err := decode(item, &o); err != nil {
		return nil, err
	}
	switch {
	case o.ByName != nil && o.ByLabels != nil || o.ByName == nil && o.ByLabels == nil:
		return nil, errors.New("it must have one of k8sService and k8sServiceSelector")
	case o.ByName == nil:
		r.unsupported(path+".k8sServiceSelector", "choosing Services by their labels is not supported", "name each Service with k8sService")
		return nil, errReported
	case o.ByName.Name == "":
		return nil, errors.New("serviceName is empty: name a Service")
	}
	path += ".k8sService"
	if o.ByName.Namespace == "" && (r.deny || r.clusterwide()) {
		r.closed = true
		r.policy.invalid(r.path+"."+path, "the namespace of the Service is missing: "+outcome(r.deny)+"; name it")
		return nil, errReported
	}
	return r.podsOfService(path, ServiceName{Namespace: cmp.Or(o.ByName.Namespace, r.policy.Ref.Namespace), Name: o.ByName.Name})
}

// podsOfService returns the peer that a Service stands for. A Service that stands for none matches no peer, in rules that deny as well, and is reported: the
// owner of a Service decides what it selects, and must not make the rule deny more than the pods of the Service's namespace.
func (r *ciliumRule) podsOfService(path string, name ServiceName) ([]Peer, error) {
	s, err := r.chooseService(name)
	switch {
	case err != nil:
		return nil, err
	case r.env.ServicesUnread:
		r.unread(path, "Services", "permissions")
		return nil, errReported
	case !s.Found:
		r.absent(path, "there is no Service "+quote(name.String()))
		return nil, nil
	case s.External:
		r.matchesNothing(path, ReasonUnsupported, "the Service "+quote(name.String())+" is an ExternalName", "use toCIDR with the addresses of that name")
		return nil, nil
	case s.Selects == "":
		r.matchesNothing(path, ReasonUnsupported, "the Service "+quote(name.String())+" has no selector", "use toCIDR with its addresses")
		return nil, nil
	case s.err != nil:
		r.matchesNothing(path, ReasonInvalid, "the selector of the Service "+quote(name.String())+" cannot be used ("+short(s.err)+")", "correct the Service")
		return nil, nil
	case !r.env.keeps(&s.labels.Requirements[0]): // the namespace: the other labels select pods of all namespaces
		r.matchesNothing(path, ReasonLabel, "the label "+quote(sourceK8s+":"+labels.KeyNamespace)+" is not part of identities, so the pods of the Service "+quote(name.String())+
			" cannot be chosen", "add the label to --labels")
		return nil, nil
	case r.services.requirements[r.deny]+len(s.labels.Requirements) > maxServiceRequirements:
		r.matchesNothing(path, ReasonUnsupported, fmt.Sprintf("the selectors of the Services in rules of this kind have more than %d requirements", maxServiceRequirements),
			"refer to fewer Services, or split the policy")
		return nil, nil
	}
	r.services.requirements[r.deny] += len(s.labels.Requirements)
	if s.denied != s.labels && len(r.policy.Problems) < maxProblems {
		reported := *s.labels
		r.policy.filterRequirements(r.path+"."+path, &reported, r.deny, r.env)
	}
	if r.deny {
		return []Peer{{Labels: s.denied}}, nil
	}
	return []Peer{{Labels: s.labels}}, nil
}

// chooseService finds a Service, and records that the policy depends on it.
func (r *ciliumRule) chooseService(name ServiceName) (*chosenService, error) {
	c := &r.services
	if c.peers++; c.peers > maxServicePeers {
		return nil, fmt.Errorf("the policy refers to Services more than %d times", maxServicePeers)
	}
	found := c.chosen[name]
	switch {
	case found != nil:
		found.references++
		return found, nil
	case len(c.chosen) == maxServices:
		return nil, fmt.Errorf("the policy refers to more than %d Services", maxServices)
	case c.chosen == nil:
		c.chosen, c.requirements = map[ServiceName]*chosenService{}, map[bool]int{}
	}
	found = &chosenService{references: 1}
	c.chosen[name] = found
	r.policy.Services = append(r.policy.Services, name)
	if r.env.Services != nil && !r.env.ServicesUnread {
		found.Service = r.env.Services(name)
	}
	if found.Selects == "" || found.External {
		return found, nil
	}
	if found.labels, found.err = podsSelectedBy(name.Namespace, found.Selects); found.err != nil {
		return found, nil
	}
	found.denied = found.labels
	hidden := func(q Requirement) bool { return !r.env.keeps(&q) }
	if slices.ContainsFunc(found.labels.Requirements, hidden) {
		found.denied = &Selector{Requirements: slices.DeleteFunc(slices.Clone(found.labels.Requirements), hidden)}
	}
	return found, nil
}

// podsSelectedBy reads the selector of a Service, which selects pods of its namespace. The first requirement is that for the namespace.
func podsSelectedBy(namespace, text string) (*Selector, error) {
	if n, found := strings.CutPrefix(text, tooManyLabels); found {
		return nil, fmt.Errorf("it has %s labels, and %d are supported", n, maxServiceSelector)
	}
	s := &Selector{Requirements: []Requirement{inNamespace(namespace)}}
	seen := map[string]bool{}
	for pair := range strings.SplitSeq(text, ",") {
		key, value, found := strings.Cut(pair, "=")
		if !found || key == "" || seen[key] || strings.Contains(value, "=") {
			return nil, errors.New("it is malformed at " + quote(pair))
		}
		seen[key] = true
		s.Requirements = append(s.Requirements, Requirement{Source: sourceK8s, Key: key, Operator: In, Values: []string{value}})
	}
	return s, nil
}

// ServiceBytes returns the length of the selectors of the policy's Services, each multiplied by the number of references. Parsing the policy again and compiling its
// rules cost time in proportion to it, in addition to the text of the policy.
func (p *Policy) ServiceBytes(find func(ServiceName) Service) (n int) {
	for i, count := range p.references {
		n += count * len(find(p.Services[i]).Selects)
	}
	return n
}

// matchesNothing reports an item that stands for no peer. The other peers of the rule count.
func (r *ciliumRule) matchesNothing(path, reason, what, advice string) {
	r.policy.add(Problem{Path: r.path + "." + path, Reason: reason, Message: what + ": " + r.nothing() + "; " + advice, Invalid: reason == ReasonInvalid})
}

// nothing describes the effect of an item that stands for no peer.
func (r *ciliumRule) nothing() string {
	if r.deny {
		return "this peer of the rule denies nothing"
	}
	return "this peer of the rule allows nothing"
}
