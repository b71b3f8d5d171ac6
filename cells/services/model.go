package services

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/serviceannotations"
	"github.com/waggle-net/waggle/pkg/settings"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/services"
)

// model is one service as its objects describe it, before others who claim the same addresses are asked.
type model struct {
	row      *services.Service // becomes the one of the table
	created  int64
	backends []endpoint // all that it names, of different addresses, sorted
	claims   []claim    // of different addresses, sorted
	external []netip.Addr
	placed   bool // it depends on addresses of nodes
	maglev   bool // clients outside choose by a table
	deny     bool // source ranges name clients that are denied
	problems map[string]struct{}
}

// foreign tells whether it stands for a service that gets no row.
func (m *model) foreign() bool { return m.row.Type == "" }

// claim is a frontend that a service wants.
type claim struct {
	loadbalancer.Address
	kind      frontends.Kind
	port      string
	outer     *pool // of everybody, or of clients outside
	inner     *pool // of clients of this node; nil when outer is
	outside   bool
	localOnly bool
	loopback  bool
	drop      bool
}

func (m *model) problem(format string, args ...any) {
	if m.problems == nil {
		m.problems = map[string]struct{}{}
	}
	m.problems[fmt.Sprintf(format, args...)] = struct{}{}
}

// maxProblems bounds how many a row names.
const maxProblems = 8

// listed are the problems as the row has them.
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

// service models a Service with its slices. taken tells whether an address is the ClusterIP of another one.
func (w *world) service(name string, s *k8s.Service, all []*k8s.EndpointSlice, taken func(netip.Addr) bool) *model {
	wanted := serviceannotations.Parse(s.Annotations)
	if !s.ServedBy(w.proxyName) || !wanted.OnNode(w.labels) {
		return nil
	}
	m := &model{created: s.Created, row: &services.Service{Name: name, Type: s.Type, Affinity: s.Affinity, ExternalLocal: s.ExternalLocal,
		InternalLocal: s.InternalLocal, SourceRanges: s.SourceRanges, ClusterIPs: s.ClusterIPs}}
	for _, text := range slices.Concat(s.Problems, wanted.Problems) {
		m.problem("%s", text)
	}
	m.deny, m.maglev = wanted.DenyRanges, w.maglev(m, wanted.Algorithm)
	if s.Type == typeLB && s.ExternalLocal {
		m.row.HealthCheckNodePort = s.HealthCheckNodePort
	}
	b := builder{world: w, model: m, service: s, slices: all, only: wanted.Kind}
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
	m.finish()
	return m
}

// maglev reports whether clients outside choose by a table; algorithm is the value of the Service's annotation, or empty.
func (w *world) maglev(m *model, algorithm string) bool {
	switch {
	case algorithm == "":
		return w.agent.Maglev
	case algorithm == settings.AlgorithmMaglev && !w.agent.MaglevTables():
		m.problem("annotation %s=%s: set --bpf-lb-algorithm-annotation, which makes room for tables", serviceannotations.Algorithm, algorithm)
		return w.agent.Maglev
	}
	return algorithm == settings.AlgorithmMaglev
}

// builder fills a model.
type builder struct {
	*world
	*model
	service *k8s.Service
	slices  []*k8s.EndpointSlice
	only    frontends.Kind // nothing: all kinds
	is4     bool           // the family that is at hand
	ips     []external     // of it
}

// external is an address of a load balancer or an external IP.
type external struct {
	netip.Addr
	kind frontends.Kind
}

// wants tells whether a Service has a family: that of one of its ClusterIPs, or any when it has none.
func (b *builder) wants(is4 bool) bool {
	ips := b.service.ClusterIPs
	return len(ips) == 0 || slices.ContainsFunc(ips, func(a netip.Addr) bool { return a.Is4() == is4 })
}

// outer are the addresses by which others reach a Service.
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

// addresses finds the external addresses of the family that may be in force.
func (b *builder) addresses(taken func(netip.Addr) bool) {
	b.ips = nil
	for _, e := range b.outer() {
		if e.Is4() != b.is4 {
			continue
		}
		b.external, b.placed = append(b.external, e.Addr), true
		why := b.refuses(e.Addr)
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

// otherFamilies tells of external addresses of a family that the Service has not.
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
	s, list := b.service, b.gather(p, protocol)
	if b.backends == nil {
		b.backends = list // most services have one port: no copy
	} else {
		b.backends = append(b.backends, list...)
	}
	c := b.choose(list)
	add := func(kind frontends.Kind, addr netip.Addr, number uint16) {
		b.claim(claim{Address: loadbalancer.Address{Addr: addr, Port: number, Protocol: protocol}, kind: kind, port: p.Name}, c)
	}
	if b.has(frontends.ClusterIP) {
		for _, ip := range s.ClusterIPs {
			if ip.Is4() == b.is4 {
				add(frontends.ClusterIP, ip, p.Port)
			}
		}
	}
	for _, e := range b.ips {
		add(e.kind, e.Addr, p.Port)
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

// onNode are the addresses of this node by which its ports are served: those for others, and the loopback address for itself.
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

// claim completes a claim by who is to answer.
func (b *builder) claim(cl claim, c choice) {
	cl.loopback = cl.Addr.IsLoopback()
	cl.outer, cl.outside = c.cluster, !cl.loopback
	local := b.row.ExternalLocal && !cl.loopback // who is on this node is not from outside
	if cl.kind == frontends.ClusterIP {
		local, cl.outside = b.row.InternalLocal, b.externalClusterIP
	} else if local {
		cl.inner = c.cluster
	}
	if local {
		cl.outer, cl.localOnly = c.local, true
	}
	cl.drop = b.drop || local && len(c.local.members) == 0 && c.any
	b.claims = append(b.claims, cl)
}

// gather finds the endpoints behind a port, of the family at hand.
func (b *builder) gather(p *k8s.ServicePort, protocol loadbalancer.Protocol) (list []endpoint) {
	for _, slice := range b.slices {
		number := uint16(0)
		for i := range slice.Ports {
			if o := &slice.Ports[i]; o.Name == p.Name && o.Protocol == p.Protocol {
				number = o.Port
			}
		}
		if number == 0 {
			continue
		}
		if list == nil {
			list = make([]endpoint, 0, len(slice.Endpoints))
		}
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			if len(e.Addrs) == 0 || e.Addrs[0].Is4() != b.is4 {
				continue // more than one address has no meaning
			}
			if !usable(e.Addrs[0]) {
				b.problem("backend %s: is no address that others could reach", e.Addrs[0])
				continue
			}
			b.placed = b.placed || e.NodeName == ""
			found := endpoint{Address: loadbalancer.Address{Addr: e.Addrs[0], Port: number, Protocol: protocol}, state: stateOf(b.service, e),
				local: b.isLocal(e.NodeName, e.Addrs[0]), node: e.NodeName, zone: e.Zone, pod: e.Pod}
			if len(e.ForZones)+len(e.ForNodes) > 0 {
				found.hints = e
			}
			list = append(list, found)
		}
	}
	slices.SortStableFunc(list, better)
	return slices.CompactFunc(list, sameAddress)
}

// finish puts all in order. Of a service's claims for the same address the one of the better kind counts.
func (m *model) finish() {
	slices.SortStableFunc(m.backends, better)
	m.backends = slices.CompactFunc(m.backends, sameAddress)
	slices.SortStableFunc(m.claims, func(a, b claim) int {
		return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(order(a.kind), order(b.kind)))
	})
	m.claims = slices.CompactFunc(m.claims, func(a, b claim) bool { return a.Address == b.Address })
	var ready []string // pods, or addresses where there is no pod
	for i := range m.backends {
		e := &m.backends[i]
		if !e.local || rank(e.state) < 2 {
			continue
		}
		if who := cmp.Or(e.pod, e.Addr.String()); !slices.Contains(ready, who) {
			ready = append(ready, who)
		}
	}
	m.row.LocalReady = len(ready)
}

// order is the place of a kind among those who claim an address.
func order(k frontends.Kind) int {
	return slices.Index([]frontends.Kind{frontends.ClusterIP, frontends.NodePort, frontends.HostPort, frontends.LoadBalancer,
		frontends.ExternalIP}, k)
}
