package servicecontroller

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/serviceannotations"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/services"
)

// model is the desired state of one service according to its objects, before conflicts with other services are decided.
type model struct {
	row      *services.Service // inserted into the table
	created  int64
	object   *k8s.Service // nil for a host port
	slices   []*k8s.EndpointSlice
	groups   []*group // one for each port and family
	claims   []claim  // sorted, one for each address; at most maxClaims
	external []netip.Addr
	placed   bool // it depends on addresses of this node
	maglev   bool // external clients use a Maglev table
	deny     bool // the source ranges deny clients
	unusable bool // an endpoint has an address that no backend may have
	problems map[string]struct{}
	roster   *roster // the groups have only the changes since this roster; nil when they have all endpoints
	read     int     // number of endpoints read from slices
	size     int     // number of endpoints of the slices behind all groups
}

// Limits of one service. Its rows are in one commit, and tenants choose the number of ports, addresses and endpoints.
const (
	maxClaims  = bpf.ServicesMax / 4 // also of groups
	maxMembers = bpf.ServicesMax     // of all groups together, so 10,000 endpoints may be behind six ports
)

// foreign reports whether the service gets no row.
func (m *model) foreign() bool { return m.row.Type == "" }

// claim is a frontend that a service wants.
type claim struct {
	loadbalancer.Address
	kind      frontends.Kind
	port      string
	group     *group
	outside   bool
	localOnly bool // only endpoints of this node
	twoScopes bool // with localOnly: clients on this node use all endpoints
	loopback  bool
}

func (m *model) problem(format string, args ...any) {
	if m.problems == nil {
		m.problems = map[string]struct{}{}
	}
	m.problems[fmt.Sprintf(format, args...)] = struct{}{}
}

// maxProblems is the maximum number of problems that a row names.
const maxProblems = 8

// listed returns the problems for the row, sorted.
func (m *model) listed() []string {
	if len(m.problems) == 0 {
		return nil
	}
	list := slices.Sorted(maps.Keys(m.problems))
	if more := len(list) - maxProblems; more > 0 {
		list = append(list[:maxProblems:maxProblems], fmt.Sprintf("and %d more", more))
	}
	return list
}

// Types of services.
const (
	typeLB       = "LoadBalancer"
	typeNodePort = "NodePort"
	typeHostPort = "HostPort"
)

// service models a Service without its endpoints. It returns nil if this node does not serve the Service. taken reports whether an address is the ClusterIP of
// another Service.
func (w *world) service(name string, s *k8s.Service, wanted *serviceannotations.Wanted, taken func(netip.Addr) bool) *model {
	if !s.ServedBy(w.proxyName) || !wanted.OnNode(w.labels) {
		return nil
	}
	m := &model{created: s.Created, object: s, row: &services.Service{Name: name, Type: s.Type, Affinity: s.Affinity, ExternalLocal: s.ExternalLocal,
		InternalLocal: s.InternalLocal, SourceRanges: s.SourceRanges, ClusterIPs: s.ClusterIPs}}
	for _, text := range slices.Concat(s.Problems, wanted.Problems) {
		m.problem("%s", text)
	}
	m.maglev = w.maglev(m, wanted.Algorithm)
	m.deny = wanted.DenyRanges && !(len(s.SourceRanges) == 1 && s.SourceRanges[0] == k8s.NoSourceRange) // denying this range alone would allow all clients
	if s.Type == typeLB && s.ExternalLocal {
		m.row.HealthCheckNodePort = s.HealthCheckNodePort
	}
	b := builder{world: w, model: m, service: s, only: wanted.Kind}
	for _, is4 := range []bool{true, false} {
		if b.is4 = is4; !w.serves(is4) || !b.wants(is4) {
			continue
		}
		b.addresses(taken)
		for i := range s.Ports {
			b.port(&s.Ports[i])
		}
	}
	b.otherFamilies()
	b.arrange()
	return m
}

// maglev reports whether external clients use a Maglev table. algorithm is the value of the Service's annotation, or empty.
func (w *world) maglev(m *model, algorithm string) bool {
	switch {
	case algorithm == "":
		return w.agent.Maglev
	case algorithm == agentconfig.AlgorithmMaglev && !w.agent.MaglevTables():
		m.problem("annotation %s=%s: set --bpf-lb-algorithm-annotation, which allocates tables", serviceannotations.Algorithm, algorithm)
		return w.agent.Maglev
	}
	return algorithm == agentconfig.AlgorithmMaglev
}

// builder fills a model.
type builder struct {
	*world
	*model
	service *k8s.Service
	only    frontends.Kind // empty for all kinds
	is4     bool           // the current family
	ips     []external     // allowed external addresses of the current family
	lists   [5][]claim     // by precedence of their kind
}

// external is an address of a load balancer or an external IP.
type external struct {
	netip.Addr
	kind frontends.Kind
}

// wants reports whether a Service has a family: the family of one of its ClusterIPs, or any family if it has no ClusterIP.
func (b *builder) wants(is4 bool) bool {
	ips := b.service.ClusterIPs
	return len(ips) == 0 || slices.ContainsFunc(ips, func(a netip.Addr) bool { return a.Is4() == is4 })
}

// outer returns the external addresses of a Service.
func (b *builder) outer() (list []external) {
	if b.service.Type == typeLB && b.has(frontends.LoadBalancer) {
		for _, a := range b.service.IngressIPs {
			list = append(list, external{a, frontends.LoadBalancer})
		}
	}
	if b.externalIPs && b.has(frontends.ExternalIP) {
		for _, a := range b.service.ExternalIPs {
			list = append(list, external{a, frontends.ExternalIP})
		}
	}
	return list
}

func (b *builder) has(kind frontends.Kind) bool { return b.only == "" || b.only == kind }

// addresses collects the allowed external addresses of the current family, and adds a problem for each rejected one.
func (b *builder) addresses(taken func(netip.Addr) bool) {
	b.ips = nil
	for _, e := range b.outer() {
		if e.Is4() != b.is4 {
			continue
		}
		b.external, b.placed = append(b.external, e.Addr), true
		why := b.rejectionReason(e.Addr)
		if why == "" && taken(e.Addr) {
			why = "is the ClusterIP of another Service"
		}
		if why != "" {
			b.problem("%s %s: %s", e.kind, e.Addr, why)
			continue
		}
		b.ips = append(b.ips, e)
	}
}

// otherFamilies adds a problem for each external address of a family that the Service does not have.
func (b *builder) otherFamilies() {
	for _, e := range b.outer() {
		if b.serves(e.Is4()) && !b.wants(e.Is4()) {
			b.problem("%s %s: the Service has no ClusterIP of this family", e.kind, e.Addr)
		}
	}
}

// port claims the frontends of a port.
func (b *builder) port(p *k8s.ServicePort) {
	protocol, err := loadbalancer.ParseProtocol(p.Protocol)
	if err != nil {
		b.problem("port %d: %v", p.Port, err)
		return
	}
	if len(b.groups) == maxClaims {
		b.limited()
		return
	}
	s, g := b.service, b.group(p.Name, protocol)
	add := func(kind frontends.Kind, addr netip.Addr, number uint16) (fits bool) {
		return b.claim(claim{Address: loadbalancer.Address{Addr: addr, Port: number, Protocol: protocol}, kind: kind, port: p.Name, group: g})
	}
	if b.has(frontends.ClusterIP) {
		for _, ip := range s.ClusterIPs {
			if ip.Is4() == b.is4 {
				add(frontends.ClusterIP, ip, p.Port)
			}
		}
	}
	for _, e := range b.ips {
		at := loadbalancer.Address{Addr: e.Addr, Port: p.Port, Protocol: protocol}
		if why := b.reserves(at); e.kind == frontends.ExternalIP && why != "" {
			b.problem("%s %s: %s", e.kind, at, why)
			continue
		}
		if !add(e.kind, e.Addr, p.Port) {
			break // the rest has no higher precedence
		}
	}
	if p.NodePort == 0 || s.Type != typeNodePort && s.Type != typeLB || !b.has(frontends.NodePort) {
		return
	}
	if !b.agent.NodePort(p.NodePort) {
		b.problem("node port %d: lies outside of --node-port-range", p.NodePort)
		return
	}
	for _, addr := range b.onNode(b.is4) {
		add(frontends.NodePort, addr, p.NodePort)
	}
	b.placed = true
}

// onNode returns the addresses of this node at which its ports are served: the addresses for NodePorts, and the loopback address for processes of this node.
func (w *world) onNode(is4 bool) (list []netip.Addr) {
	for _, a := range w.nodePorts {
		if a.Is4() == is4 {
			list = append(list, a)
		}
	}
	return append(list, loopback(is4))
}

func loopback(is4 bool) netip.Addr {
	if is4 {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.IPv6Loopback()
}

// group adds a group for the endpoints behind a port in the current family.
func (b *builder) group(port string, protocol loadbalancer.Protocol) *group {
	g := &group{port: port, protocol: protocol, is4: b.is4}
	b.groups = append(b.groups, g)
	return g
}

// claim adds a claim, and sets its clients and endpoints. It returns false if the service already has the maximum number of claims of this kind.
func (b *builder) claim(cl claim) bool {
	list := &b.lists[order(cl.kind)]
	if len(*list) == maxClaims {
		b.limited()
		return false
	}
	cl.loopback = cl.Addr.IsLoopback()
	cl.outside = !cl.loopback
	cl.localOnly = b.row.ExternalLocal && !cl.loopback // clients of the loopback address are on this node
	if cl.kind == frontends.ClusterIP {
		cl.localOnly, cl.outside = b.row.InternalLocal, b.externalClusterIP
	} else {
		cl.twoScopes = cl.localOnly
	}
	*list = append(*list, cl)
	return true
}

func (m *model) limited() {
	m.problem("frontends: more than %d; ClusterIPs have priority, then node ports, load balancer addresses and external IPs", maxClaims)
}

// pools returns the ids of the backends that take new connections: outer for all clients or for external clients, and inner for clients on this node if they
// differ.
func (cl *claim) pools() (outer, inner []uint32) {
	cl.group.choose()
	if outer = cl.group.cluster; cl.localOnly {
		outer = cl.group.local
	}
	if cl.twoScopes {
		inner = cl.group.cluster
	}
	return outer, inner
}

// drops reports whether a claim without backends is dropped instead of rejected: load balancers try another node.
func (cl *claim) drops() bool {
	return cl.localOnly && len(cl.group.local) == 0 && len(cl.group.cluster) > 0
}

// arrange takes claims in the precedence of their kinds up to the maximum, sorts them by address, and keeps for each address the claim of the best kind.
func (b *builder) arrange() {
	all := slices.Concat(b.lists[:]...)
	if len(all) > maxClaims {
		b.limited()
		all = all[:maxClaims]
	}
	slices.SortStableFunc(all, func(a, b claim) int { return a.Address.Compare(b.Address) })
	b.claims = slices.CompactFunc(all, func(a, b claim) bool { return a.Address == b.Address })
}

// endpoints merges the endpoints of all groups: the best of each address.
func (m *model) endpoints() []endpoint {
	if len(m.groups) == 1 {
		return m.groups[0].endpoints // most services have one port: no copy
	}
	var all []endpoint
	for _, g := range m.groups {
		all = append(all, g.endpoints...)
	}
	return best(all)
}

// count sets the fields of the row that depend on all members.
func (m *model) count() {
	var ready []string
	var lists [][]uint32
	for _, g := range m.groups {
		ids := make([]uint32, len(g.members))
		for i := range g.members {
			e := &g.members[i]
			if ids[i] = e.id; e.rank == rankActive && e.traits&local != 0 {
				ready = append(ready, e.who)
			}
		}
		if len(ids) > 0 {
			lists = append(lists, ids)
		}
	}
	m.row.Backends = union(lists)
	slices.Sort(ready)
	m.row.LocalReady = len(slices.Compact(ready))
}

// union merges ascending lists of ids, in pairs because there may be thousands of ports. It may return one of the lists.
func union(lists [][]uint32) []uint32 {
	switch len(lists) {
	case 0:
		return nil
	case 1:
		return lists[0]
	}
	half := len(lists) / 2
	return merge(union(lists[:half]), union(lists[half:]))
}

// merge merges two ascending lists of ids. It may return one of them.
func merge(a, b []uint32) []uint32 {
	switch {
	case len(b) == 0:
		return a
	case len(a) == 0:
		return b
	}
	all := make([]uint32, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		next := min(a[0], b[0])
		all = append(all, next)
		if a[0] == next {
			a = a[1:]
		}
		if len(b) > 0 && b[0] == next {
			b = b[1:]
		}
	}
	return append(append(all, a...), b...)
}

// order returns the precedence of a kind among the claims to an address; 0 is the highest.
func order(k frontends.Kind) int {
	return slices.Index([]frontends.Kind{frontends.ClusterIP, frontends.NodePort, frontends.HostPort, frontends.LoadBalancer,
		frontends.ExternalIP}, k)
}
