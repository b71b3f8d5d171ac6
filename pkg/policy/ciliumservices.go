package policy

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/netip"
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
	Found     bool
	External  bool   // the type is ExternalName
	Selects   string // the selector, "key=value,..."; empty without one; a short text that is no selector in place of one with too many labels
	Addresses string // without a selector: the addresses of the endpoints, sorted, separated by commas; [tooManyAddresses] in place of too many
}

// ServiceOf returns the meaning of a row, without addresses; nil is a Service that does not exist.
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

// ByAddresses reports whether the Service stands for the addresses in its slices, because it has no selector.
func (s Service) ByAddresses() bool { return s.Found && !s.External && s.Selects == "" }

// WithAddresses adds the addresses of all endpoints in the slices of the Service, whatever their conditions are, if the Service has no selector.
func (s Service) WithAddresses(of iter.Seq[*k8s.EndpointSlice]) Service {
	if !s.ByAddresses() {
		return s
	}
	var found []netip.Addr
	known := map[netip.Addr]bool{}
	read := 0
	for slice := range of {
		for i := range slice.Endpoints {
			for _, addr := range slice.Endpoints[i].Addrs {
				if read++; read > maxRepeatedAddresses {
					s.Addresses = tooManyAddresses
					return s
				}
				if addr = addr.Unmap().WithZone(""); addr.IsValid() && !known[addr] {
					known[addr] = true
					found = append(found, addr)
				}
			}
		}
	}
	if len(found) > maxAddresses {
		s.Addresses = tooManyAddresses
		return s
	}
	slices.SortFunc(found, netip.Addr.Compare)
	texts := make([]string, len(found))
	for i, addr := range found {
		texts[i] = addr.String()
	}
	s.Addresses = strings.Join(texts, ",")
	return s
}

// Texts that stand for a selector with too many labels, whose number follows, and for too many addresses. No key of a label has a colon.
const (
	tooManyLabels    = "labels:"
	tooManyAddresses = "too many"
)

// Bounds of toServices. The text of one policy may be 1 MB. Rules beyond the bounds of this text fail closed. The owners of Services write their selectors and
// slices, so a reference beyond a bound of the selectors matches no peer; see [ciliumRule.beyond] for a bound of the addresses.
const (
	maxServices            = 1000   // different Services that one policy names
	maxServicePeers        = 4000   // references to Services by name in all rules of one policy
	maxServiceSelector     = 20     // labels in the selector of one Service
	maxServiceRequirements = 10_000 // requirements in the selectors of all references of the allow rules, and of the deny rules: the labels, and the namespace of the Service
	maxAddresses           = 1000   // different addresses of one Service
	maxRepeatedAddresses   = 2000   // addresses in the slices of one Service
	maxServiceAddresses    = 4000   // addresses in all references of the allow rules, and of the deny rules
)

// serviceReader reads each Service of a policy once.
type serviceReader struct {
	chosen  map[ServiceName]*chosenService
	names   int                     // different Services that the policy names
	peers   int                     // references by name so far
	byName  map[bool]*serviceBudget // of references by name, by whether the rule denies: references of allow rules must not use up the bounds of deny rules
	kept    map[string]bool         // whether a label of pods is part of identities, by its key
	written int                     // number of times that the text has the field k8sServiceSelector
	items   int                     // items with this field so far
	lists   map[string]*serviceList // Services of namespaces
}

// chosenService is the peer that a Service stands for. All rules of a policy share it.
type chosenService struct {
	Service
	named      bool // the policy refers to it by name
	references int
	labels     *Selector // nil without a selector that can be read
	denied     *Selector // the same for rules that deny, without labels that are not part of identities
	err        error     // of the selector
	addresses  []Peer    // without a selector
}

// serviceBudget counts towards the bounds of some references.
type serviceBudget struct {
	whose                         string // the Services of these references
	nothing                       string // the effect of a Service that stands for no peer
	requirements, addresses       int    // so far
	maxRequirements, maxAddresses int
}

// service reads one item of toServices.
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
		return r.servicesByLabels(path+".k8sServiceSelector", o.ByLabels)
	case o.ByName.Name == "":
		return nil, errors.New("serviceName is empty: name a Service")
	}
	path += ".k8sService"
	namespace, found := r.namespaceOfServices(path, o.ByName.Namespace)
	if !found {
		return nil, errReported
	}
	return r.serviceByName(path, ServiceName{Namespace: namespace, Name: o.ByName.Name})
}

// namespaceOfServices returns the namespace of an item. Without one, Cilium chooses Services in all namespaces. An allow rule of a namespaced policy then means
// Services of the policy's own namespace; a deny rule would deny less than in Cilium, so the namespace is required.
func (r *ciliumRule) namespaceOfServices(path, given string) (namespace string, found bool) {
	if given == "" && (r.deny || r.clusterwide()) {
		r.closed = true
		r.policy.invalid(r.path+"."+path, "the namespace of the Service is missing: "+outcome(r.deny)+"; name it")
		return "", false
	}
	return cmp.Or(given, r.policy.Ref.Namespace), true
}

// serviceByName returns the peers that a Service stands for.
func (r *ciliumRule) serviceByName(path string, name ServiceName) ([]Peer, error) {
	s, err := r.chooseService(name)
	if err != nil {
		return nil, err
	}
	c := &r.services
	if c.byName[r.deny] == nil {
		if c.byName == nil {
			c.byName = map[bool]*serviceBudget{}
		}
		c.byName[r.deny] = &serviceBudget{whose: "the Services in rules of this kind", nothing: r.nothing(),
			maxRequirements: maxServiceRequirements, maxAddresses: maxServiceAddresses}
	}
	peers, err := r.peersOfService(path, name, s, c.byName[r.deny])
	var many manyAddresses
	if errors.As(err, &many) {
		return r.beyond(path, many), nil
	}
	return peers, err
}

// peersOfService returns the peers that a Service stands for. A Service that stands for none matches no peer, in rules that deny as well, and is reported: the
// owner of a Service decides what it selects, and must not make the rule deny more than the pods of the Service's namespace. The error is of type
// [manyAddresses] if the Service has too many addresses.
func (r *ciliumRule) peersOfService(path string, name ServiceName, s *chosenService, budget *serviceBudget) ([]Peer, error) {
	nothing := func(reason, what, advice string) ([]Peer, error) {
		r.policy.add(Problem{Path: r.path + "." + path, Reason: reason, Message: what + ": " + budget.nothing + "; " + advice, Invalid: reason == ReasonInvalid})
		return nil, nil
	}
	switch {
	case r.env.ServicesUnread:
		r.unread(path, "Services", "permissions")
		return nil, errReported
	case !s.Found:
		r.absent(path, "there is no Service "+quote(name.String()))
		return nil, nil
	case s.External:
		return nothing(ReasonUnsupported, "the Service "+quote(name.String())+" is an ExternalName", "use toCIDR with the addresses of that name")
	case s.Selects == "":
		return r.addressesOfService(path, name, s, budget)
	case s.err != nil:
		return nothing(ReasonInvalid, "the selector of the Service "+quote(name.String())+" cannot be used ("+short(s.err)+")", "correct the Service")
	case !r.keepsLabel(&s.labels.Requirements[0]): // the namespace: the other labels select pods of all namespaces
		return nothing(ReasonLabel, "the label "+quote(sourceK8s+":"+labels.KeyNamespace)+" is not part of identities, so the pods of the Service "+quote(name.String())+
			" cannot be chosen", "add the label to --labels")
	case budget.requirements+len(s.labels.Requirements) > budget.maxRequirements:
		return nothing(ReasonUnsupported, fmt.Sprintf("the selectors of %s have more than %d requirements", budget.whose, budget.maxRequirements),
			"refer to fewer Services, or split the policy")
	}
	budget.requirements += len(s.labels.Requirements)
	if s.denied != s.labels && len(r.policy.Problems) < maxProblems {
		reported := *s.labels
		r.policy.filterRequirements(r.path+"."+path, &reported, r.deny, r.env)
	}
	if r.deny {
		return []Peer{{Labels: s.denied}}, nil
	}
	return []Peer{{Labels: s.labels}}, nil
}

// addressesOfService returns the addresses of a Service without a selector. Like CIDRs in the policy, they match peers outside the cluster.
func (r *ciliumRule) addressesOfService(path string, name ServiceName, s *chosenService, budget *serviceBudget) ([]Peer, error) {
	switch {
	case r.env.WithoutSlices:
		return nil, nil
	case r.env.SlicesUnread:
		r.unread(path, "EndpointSlices", "permissions")
		return nil, errReported
	case s.Addresses == tooManyAddresses:
		return nil, manyAddresses(fmt.Sprintf("the Service %s has more than %d addresses", quote(name.String()), maxAddresses))
	case budget.addresses+len(s.addresses) > budget.maxAddresses:
		return nil, manyAddresses(fmt.Sprintf("%s have more than %d addresses", budget.whose, budget.maxAddresses))
	}
	budget.addresses += len(s.addresses)
	return s.addresses, nil
}

// manyAddresses describes a Service with too many addresses.
type manyAddresses string

func (m manyAddresses) Error() string { return string(m) }

// beyond returns the peers in place of too many addresses, and reports it: none in an allow rule. A deny rule denies all addresses that the Service can stand
// for, because its owner must not lift the deny with more addresses. These are the addresses outside the cluster, so pods stay reachable.
func (r *ciliumRule) beyond(path string, many manyAddresses) []Peer {
	effect := r.nothing()
	var peers []Peer
	if r.deny {
		effect = "this peer of the rule denies all addresses outside the cluster"
		for _, addr := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
			peers = append(peers, Peer{CIDR: netip.PrefixFrom(addr, 0), Scope: Outside})
		}
	}
	r.policy.add(Problem{Path: r.path + "." + path, Reason: ReasonUnsupported, Message: string(many) + ": " + effect + "; use toCIDR with wider ranges"})
	return peers
}

// chooseService finds a Service to which an item refers by name.
func (r *ciliumRule) chooseService(name ServiceName) (*chosenService, error) {
	c := &r.services
	if c.peers++; c.peers > maxServicePeers {
		return nil, fmt.Errorf("the policy refers to Services more than %d times", maxServicePeers)
	}
	if found := c.chosen[name]; found == nil || !found.named {
		if c.names == maxServices {
			return nil, fmt.Errorf("the policy refers to more than %d Services", maxServices)
		}
		c.names++
	}
	found := r.readService(name)
	found.named = true
	return found, nil
}

// readService finds a Service, counts a reference to it, and records that the policy depends on it.
func (r *ciliumRule) readService(name ServiceName) *chosenService {
	c := &r.services
	found := c.chosen[name]
	if found != nil {
		found.references++
		return found
	}
	if c.chosen == nil {
		c.chosen = map[ServiceName]*chosenService{}
	}
	found = &chosenService{references: 1}
	c.chosen[name] = found
	r.policy.Services = append(r.policy.Services, name)
	if r.env.Services != nil && !r.env.ServicesUnread {
		found.Service = r.env.Services(name)
	}
	switch {
	case found.ByAddresses():
		found.addresses = peersAt(found.Addresses)
		return found
	case found.Selects == "" || found.External:
		return found
	}
	if found.labels, found.err = podsSelectedBy(name.Namespace, found.Selects); found.err != nil {
		return found
	}
	found.denied = found.labels
	hidden := func(q Requirement) bool { return !r.keepsLabel(&q) }
	if slices.ContainsFunc(found.labels.Requirements, hidden) {
		found.denied = &Selector{Requirements: slices.DeleteFunc(slices.Clone(found.labels.Requirements), hidden)}
	}
	return found
}

// keepsLabel reports whether a label of pods, with the source k8s, is part of identities. Filters are slow, and the same few keys occur in many selectors.
func (r *ciliumRule) keepsLabel(q *Requirement) bool {
	keeps, found := r.services.kept[q.Key]
	if !found {
		if r.services.kept == nil {
			r.services.kept = map[string]bool{}
		}
		keeps = r.env.keeps(q)
		r.services.kept[q.Key] = keeps
	}
	return keeps
}

// peersAt returns the peers at the addresses of a [Service].
func peersAt(addresses string) (peers []Peer) {
	for text := range strings.SplitSeq(addresses, ",") {
		if addr, err := netip.ParseAddr(text); err == nil {
			peers = append(peers, Peer{CIDR: netip.PrefixFrom(addr, addr.BitLen()), Scope: Outside})
		}
	}
	return peers
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

// ServiceBytes returns the length of the selectors and addresses of the policy's Services, each multiplied by the number of references, and of the labels in the
// namespaces in which the policy chooses Services, each multiplied by the number of selectors. Parsing the policy again and compiling its rules cost time in
// proportion to it, in addition to the text of the policy.
func (p *Policy) ServiceBytes(find func(ServiceName) Service, labelsIn func(namespace string) int) (n int) {
	for i, count := range p.references {
		s := find(p.Services[i])
		n += count * (len(s.Selects) + len(s.Addresses))
	}
	for i, count := range p.choices {
		n += count * labelsIn(p.ServiceNamespaces[i])
	}
	return n
}

// nothing describes the effect of an item that stands for no peer.
func (r *ciliumRule) nothing() string {
	if r.deny {
		return "this peer of the rule denies nothing"
	}
	return "this peer of the rule allows nothing"
}
