package services

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/settings"
	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
	"github.com/waggle-net/waggle/pkg/tables/services"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// bench is the cell's loop without its goroutine, over tables that a test fills.
type bench struct {
	t     testing.TB
	c     *controller
	db    *statedb.DB
	svcs  statedb.RWTable[*k8s.Service]
	slcs  statedb.RWTable[*k8s.EndpointSlice]
	pods  statedb.RWTable[*k8s.Pod]
	nodes statedb.RWTable[*k8s.Node]
	addrs statedb.RWTable[nodeaddresses.Address]
	srcs  statedb.RWTable[sources.Source]
	done  []func(statedb.WriteTxn)
}

var plain = settings.Agent{EnableIPv4: true, EnableIPv6: true, NodeName: "one", KubeProxyReplacement: true, NodePortMin: 30000, NodePortMax: 32767}

func newBench(t testing.TB, config Config, earlier *fakeIDs) *bench {
	t.Helper()
	db := statedb.New()
	b := &bench{t: t, db: db}
	table := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	b.svcs, err = k8s.NewServiceTable(db)
	table(err)
	b.slcs, err = k8s.NewEndpointSliceTable(db)
	table(err)
	b.pods, err = k8s.NewPodTable(db)
	table(err)
	b.nodes, err = k8s.NewNodeTable(db)
	table(err)
	b.addrs, err = nodeaddresses.NewTable(db)
	table(err)
	b.srcs, err = sources.NewTable(db)
	table(err)
	others, err := cilium.NewNodeTable(db)
	table(err)
	s, err := services.NewTable(db)
	table(err)
	f, err := frontends.NewTable(db)
	table(err)
	be, err := backends.NewTable(db)
	table(err)
	r, err := newRules(config, plain)
	table(err)
	if err := db.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Stop() })
	b.c = newController(params{DB: db, Rules: r, Earlier: earlier, KubernetesServices: b.svcs, Slices: b.slcs, Pods: b.pods, Nodes: b.nodes,
		CiliumNodes: others, NodeAddresses: b.addrs, Sources: b.srcs, Services: s, Frontends: f, Backends: be, Initialize: newInitialize(db, s, f, be)})
	return b
}

// state says how far the sources of all objects are.
func (b *bench) state(s sources.State) {
	txn := b.db.WriteTxn(b.srcs)
	defer txn.Commit()
	for _, name := range []string{"k8s-services", "k8s-endpointslices", "k8s-pods", "k8s-nodes"} {
		put(b, txn, b.srcs, sources.Source{Table: name, State: s})
	}
}

func put[R any](b *bench, txn statedb.WriteTxn, t statedb.RWTable[R], row R) {
	if _, _, err := t.Insert(txn, row); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) insert(rows ...any) {
	b.t.Helper()
	txn := b.db.WriteTxn(b.svcs, b.slcs, b.pods, b.nodes, b.addrs)
	defer txn.Commit()
	for _, row := range rows {
		b.insertObject(txn, row)
	}
}

func (b *bench) insertObject(txn statedb.WriteTxn, row any) {
	switch r := row.(type) {
	case *k8s.Service:
		put(b, txn, b.svcs, r)
	case *k8s.EndpointSlice:
		put(b, txn, b.slcs, r)
	case *k8s.Pod:
		put(b, txn, b.pods, r)
	case *k8s.Node:
		put(b, txn, b.nodes, r)
	case nodeaddresses.Address:
		put(b, txn, b.addrs, r)
	default:
		b.t.Fatalf("a %T", row)
	}
}

func (b *bench) remove(row any) {
	b.t.Helper()
	txn := b.db.WriteTxn(b.svcs, b.slcs, b.pods, b.nodes, b.addrs)
	defer txn.Commit()
	var err error
	switch r := row.(type) {
	case *k8s.Service:
		_, _, err = b.svcs.Delete(txn, r)
	case *k8s.EndpointSlice:
		_, _, err = b.slcs.Delete(txn, r)
	case *k8s.Pod:
		_, _, err = b.pods.Delete(txn, r)
	case *k8s.Node:
		_, _, err = b.nodes.Delete(txn, r)
	case nodeaddresses.Address:
		_, _, err = b.addrs.Delete(txn, r)
	default:
		b.t.Fatalf("a %T", row)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// step does what the loop does once.
func (b *bench) step() {
	b.t.Helper()
	if err := b.c.restore(); err != nil {
		b.t.Fatal(err)
	}
	txn, changed := b.db.ReadTxn(), statedb.NewWatchSet()
	b.c.in.read(txn, changed, b.c.concern)
	if b.c.in.waiting(txn, changed) != "" {
		return
	}
	if err := b.c.pass(txn, changed); err != nil {
		b.t.Fatal(err)
	}
}

// naive computes from all objects at once, without a thought of speed, what the tables must say. It writes one line for each row, in
// which backends stand with their addresses, since ids are a matter of history.
func (b *bench) naive() []string {
	txn := b.db.ReadTxn()
	type fact struct {
		state           int
		local           bool
		node, zone, pod string
	}
	type front struct {
		service, port, kind string
		made                int64
		outer, inner        []string
		two, outside, drop  bool
		localOnly, loop     bool
		affinity            int
		ranges              []netip.Prefix
	}
	kinds := []string{"ClusterIP", "NodePort", "HostPort", "LoadBalancer", "ExternalIPs"}
	backs, fronts := map[string]map[string]fact{}, map[string][]front{} // by address, and by service within
	problems, rows := map[string][]string{}, map[string]string{}
	own, serving := map[netip.Addr]bool{}, []netip.Addr{}
	for a := range b.addrs.All(txn) {
		own[a.Addr] = true
		if a.NodePort {
			serving = append(serving, a.Addr)
		}
	}
	for _, text := range []string{"127.0.0.1", "::1"} {
		serving = append(serving, netip.MustParseAddr(text))
	}
	zone, ofNode, pods := "", map[netip.Addr]string{}, []netip.Prefix{}
	for n := range b.nodes.All(txn) {
		if n.Name == "one" {
			zone = n.Labels["topology.kubernetes.io/zone"]
		}
		for _, a := range n.Addresses {
			ofNode[netip.MustParseAddr(a.Address)] = n.Name
		}
		for _, p := range n.PodCIDRs {
			pods = append(pods, netip.MustParsePrefix(p))
		}
	}
	served := map[string]*k8s.Service{}
	for s := range b.svcs.All(txn) {
		if !s.Headless && s.Type != "ExternalName" && s.Labels["service.kubernetes.io/service-proxy-name"] == "" {
			served[s.Namespace+"/"+s.Name] = s
		}
	}
	note := func(name, addr string, state int, local bool, node, zone, pod string) {
		if backs[addr] == nil {
			backs[addr] = map[string]fact{}
		}
		if old, twice := backs[addr][name]; !twice || old.state < state {
			backs[addr][name] = fact{state, local, node, zone, pod}
		}
	}
	claim := func(addr netip.Addr, port uint16, protocol string, f front) {
		at := netip.AddrPortFrom(addr, port).String() + "/" + protocol
		for i, o := range fronts[at] {
			if o.service == f.service {
				if slices.Index(kinds, f.kind) < slices.Index(kinds, o.kind) {
					fronts[at][i] = f
				}
				return
			}
		}
		fronts[at] = append(fronts[at], f)
	}
	for _, name := range slices.Sorted(maps.Keys(served)) {
		s := served[name]
		localPods := map[string]bool{}
		for _, is4 := range []bool{true, false} {
			if len(s.ClusterIPs) > 0 && !slices.ContainsFunc(s.ClusterIPs, func(a netip.Addr) bool { return a.Is4() == is4 }) {
				for _, a := range s.ExternalIPs {
					if a.Is4() == is4 {
						problems[name] = append(problems[name], "external family "+a.String())
					}
				}
				for _, a := range s.IngressIPs {
					if a.Is4() == is4 && s.Type == "LoadBalancer" {
						problems[name] = append(problems[name], "family "+a.String())
					}
				}
				continue
			}
			for _, p := range s.Ports {
				// Endpoints, the best of each address.
				found := map[string]k8s.SliceEndpoint{}
				value := func(e k8s.SliceEndpoint) int {
					switch {
					case e.Ready || s.PublishNotReadyAddrs:
						return 2
					case e.Serving && e.Terminating:
						return 1
					}
					return 0
				}
				here := func(e k8s.SliceEndpoint) bool { return e.NodeName == "one" || e.NodeName == "" && own[e.Addrs[0]] }
				for slice := range b.slcs.All(txn) {
					if slice.Namespace != s.Namespace || slice.Service != s.Name {
						continue
					}
					for _, sp := range slice.Ports {
						if sp.Name != p.Name || sp.Protocol != p.Protocol {
							continue
						}
						for _, e := range slice.Endpoints {
							if e.Addrs[0].Is4() != is4 {
								continue
							}
							at := netip.AddrPortFrom(e.Addrs[0], sp.Port).String() + "/" + sp.Protocol
							if old, twice := found[at]; !twice || value(old) < value(e) {
								found[at] = e
							}
						}
					}
				}
				var all, active, ending, localActive, localEnding, zoned []string
				hinted := true
				for at, e := range found {
					note(name, at, value(e), here(e), e.NodeName, e.Zone, e.Pod)
					all = append(all, at)
					switch value(e) {
					case 2:
						active = append(active, at)
						if here(e) {
							localActive = append(localActive, at)
							localPods[cmp.Or(e.Pod, e.Addrs[0].String())] = true
						}
						hinted = hinted && len(e.ForZones) > 0
						if zone != "" && slices.Contains(e.ForZones, zone) {
							zoned = append(zoned, at)
						}
					case 1:
						ending = append(ending, at)
						if here(e) {
							localEnding = append(localEnding, at)
						}
					}
				}
				anywhere, onNode := active, localActive
				if hinted && len(zoned) > 0 {
					anywhere = zoned
				}
				if len(active) == 0 {
					anywhere = ending
				}
				if len(localActive) == 0 {
					onNode = localEnding
				}
				base := front{service: name, port: p.Name, made: s.Created, affinity: int(s.Affinity.Seconds())}
				for _, ip := range s.ClusterIPs {
					if ip.Is4() != is4 {
						continue
					}
					f := base
					f.kind, f.outer = "ClusterIP", anywhere
					if s.InternalLocal {
						f.outer, f.localOnly, f.drop = onNode, true, len(onNode) == 0 && len(anywhere) > 0
					}
					claim(ip, p.Port, p.Protocol, f)
				}
				outside := func(kind string, addr netip.Addr, port uint16) {
					f := base
					f.kind, f.outer, f.outside = kind, anywhere, true
					if s.ExternalLocal {
						f.outer, f.inner, f.two, f.localOnly, f.drop = onNode, anywhere, true, true, len(onNode) == 0 && len(anywhere) > 0
					}
					if kind == "LoadBalancer" {
						f.ranges = s.SourceRanges
					}
					if addr.IsLoopback() {
						f = base
						f.kind, f.outer, f.loop = kind, anywhere, true
					}
					claim(addr, port, p.Protocol, f)
				}
				if p.NodePort != 0 && (s.Type == "NodePort" || s.Type == "LoadBalancer") {
					for _, a := range serving {
						if a.Is4() == is4 {
							outside("NodePort", a, p.NodePort)
						}
					}
				}
				open := func(kind string, list []netip.Addr) {
					for _, a := range list {
						bad := a.Is4() != is4
						if !bad {
							bad = own[a] || ofNode[a] != "" || slices.ContainsFunc(pods, func(p netip.Prefix) bool { return p.Contains(a) })
							for other, o := range served {
								bad = bad || other != name && slices.Contains(o.ClusterIPs, a)
							}
							if bad {
								problems[name] = append(problems[name], kind+" "+a.String())
							}
						}
						if !bad {
							outside(kind, a, p.Port)
						}
					}
				}
				if s.Type == "LoadBalancer" {
					open("LoadBalancer", s.IngressIPs)
				}
				open("ExternalIPs", s.ExternalIPs)
			}
		}
		rows[name] = fmt.Sprintf("%s %d", s.Type, len(localPods))
	}
	for p := range b.pods.All(txn) {
		if p.HostNetwork || p.Phase == "Failed" || p.Phase == "Succeeded" {
			continue
		}
		for _, h := range p.HostPorts {
			if len(p.PodIPs) == 0 {
				continue
			}
			name := fmt.Sprintf("%s/%s:host-port/%s/%d", p.Namespace, p.Name, p.UID, h.Port)
			rows[name] = cmp.Or(rows[name], "HostPort 0")
			if h.Port >= 30000 && h.Port <= 32767 {
				problems[name] = append(problems[name], "range")
				continue
			}
			for _, ip := range p.PodIPs {
				at := netip.AddrPortFrom(ip, h.Container).String() + "/" + h.Protocol
				rows[name] = "HostPort 1"
				note(name, at, 2, true, "one", zone, p.Namespace+"/"+p.Name)
				for _, a := range serving {
					if a.Is4() == ip.Is4() {
						claim(a, h.Port, h.Protocol, front{service: name, kind: "HostPort", made: p.Created, outer: []string{at}, outside: !a.IsLoopback(), loop: a.IsLoopback()})
					}
				}
			}
		}
	}
	var lines []string
	list := func(names []string) string { return strings.Join(slices.Sorted(slices.Values(names)), ",") }
	for at, all := range fronts {
		slices.SortFunc(all, func(a, b front) int {
			return cmp.Or(cmp.Compare(slices.Index(kinds, a.kind), slices.Index(kinds, b.kind)), cmp.Compare(a.made, b.made), cmp.Compare(a.service, b.service))
		})
		f, refused := all[0], []string{}
		for _, o := range all[1:] {
			refused = append(refused, o.service)
			problems[o.service] = append(problems[o.service], "lost "+at)
		}
		lines = append(lines, fmt.Sprint("frontend ", at, " ", f.kind, " ", f.service, " ", f.port, " [", list(f.outer), "] [", list(f.inner), "] ", f.two,
			f.outside, f.drop, f.localOnly, f.loop, f.affinity, f.ranges, refused))
	}
	for at, says := range backs {
		var all fact
		names := slices.Sorted(maps.Keys(says))
		for _, name := range names {
			x := says[name]
			all = fact{max(all.state, x.state), all.local || x.local, cmp.Or(all.node, x.node), cmp.Or(all.zone, x.zone), cmp.Or(all.pod, x.pod)}
		}
		lines = append(lines, fmt.Sprint("backend ", at, " ", []string{"not-ready", "terminating", "active"}[all.state], " ", all.local, " ", all.node, " ",
			all.zone, " ", all.pod, " ", names))
	}
	for name, text := range rows {
		slices.Sort(problems[name])
		lines = append(lines, fmt.Sprint("service ", name, " ", text, " ", min(len(slices.Compact(problems[name])), maxProblems+1)))
	}
	slices.Sort(lines)
	return lines
}

// tables writes the same lines from the rows.
func (b *bench) tables() (lines []string) {
	txn := b.db.ReadTxn()
	byID := map[uint32]string{}
	for x := range b.c.Backends.All(txn) {
		if byID[x.ID] != "" || x.ID == 0 {
			b.t.Errorf("backend id %d twice", x.ID)
		}
		byID[x.ID] = x.Address.String()
		lines = append(lines, fmt.Sprint("backend ", x.Address, " ", x.State, " ", x.Local, " ", x.Node, " ", x.Zone, " ", x.Pod, " ", x.Services))
	}
	names := func(ids []uint32) string {
		var list []string
		for _, id := range ids {
			list = append(list, byID[id])
		}
		slices.Sort(list)
		return strings.Join(list, ",")
	}
	seen := map[uint32]bool{}
	for f := range b.c.Frontends.All(txn) {
		if seen[f.ID] || f.ID == 0 || !slices.IsSorted(f.Backends) {
			b.t.Errorf("frontend %+v: its id is another's, or its backends are in no order", f)
		}
		seen[f.ID] = true
		refused := append([]string{}, f.Refused...)
		lines = append(lines, fmt.Sprint("frontend ", f.Address, " ", f.Kind, " ", f.Service, " ", f.PortName, " [", names(f.Backends), "] [", names(f.Internal), "] ", f.TwoScopes,
			f.Outside, f.Drop, f.LocalOnly, f.Loopback, f.Affinity, f.Ranges, refused))
	}
	for s := range b.c.Services.All(txn) {
		lines = append(lines, fmt.Sprint("service ", s.Name, " ", s.Type, " ", s.LocalReady, " ", len(s.Problems)))
	}
	slices.Sort(lines)
	return lines
}

// agree holds the rows against the naive model.
func (b *bench) agree(what string) {
	b.t.Helper()
	want, got := b.naive(), b.tables()
	if slices.Equal(want, got) {
		return
	}
	for _, line := range want {
		if !slices.Contains(got, line) {
			b.t.Errorf("%s: missing %s", what, line)
		}
	}
	for _, line := range got {
		if !slices.Contains(want, line) {
			b.t.Errorf("%s: not wanted %s", what, line)
		}
	}
	b.t.FailNow()
}

// churn makes random objects out of few names and addresses, so that they meet.
type churn struct {
	*rand.Rand
	*bench
	made int64
}

func pickOne[T any](c *churn, list ...T) T { return list[c.IntN(len(list))] }

func (c *churn) addr(is4 bool, block, count int) netip.Addr {
	if is4 {
		return netip.AddrFrom4([4]byte{10, byte(block), 0, byte(1 + c.IntN(count))})
	}
	return netip.AddrFrom16([16]byte{0xfd, byte(block), 15: byte(1 + c.IntN(count))})
}

func (c *churn) families() []bool {
	return pickOne(c, []bool{true}, []bool{false}, []bool{true, false})
}

const (
	blockClusterIPs, blockPods, blockNodes, blockOutside = 96, 1, 0, 200
)

func (c *churn) randomService() *k8s.Service {
	c.made += int64(c.IntN(2))
	s := &k8s.Service{Namespace: pickOne(c, "a", "b"), Name: pickOne(c, "web", "web-api", "dns"), Created: c.made,
		Type: pickOne(c, "ClusterIP", "ClusterIP", "NodePort", "LoadBalancer", "ExternalName"), Headless: c.IntN(10) == 0,
		ExternalLocal: c.IntN(3) == 0, InternalLocal: c.IntN(4) == 0, PublishNotReadyAddrs: c.IntN(5) == 0}
	if c.IntN(8) == 0 {
		s.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "other"}
	}
	if c.IntN(4) == 0 {
		s.Affinity = 100e9
	}
	for _, is4 := range c.families() {
		s.ClusterIPs = append(s.ClusterIPs, c.addr(is4, blockClusterIPs, 6))
	}
	for i, name := range []string{"http", "udp"}[:1+c.IntN(2)] {
		s.Ports = append(s.Ports, k8s.ServicePort{Name: name, Protocol: []string{"TCP", "UDP"}[i], Port: 80 + uint16(c.IntN(2)), NodePort: pickOne(c, uint16(0), 30001, 30002)})
	}
	outside := func() (list []netip.Addr) {
		for range c.IntN(3) {
			list = append(list, c.addr(c.IntN(2) == 0, pickOne(c, blockOutside, blockOutside, blockOutside, blockClusterIPs, blockNodes, blockPods), 3))
		}
		return list
	}
	s.ExternalIPs, s.IngressIPs = outside(), outside()
	if c.IntN(3) == 0 {
		s.SourceRanges = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	}
	return s
}

func (c *churn) randomSlice() *k8s.EndpointSlice {
	is4 := c.IntN(2) == 0
	s := &k8s.EndpointSlice{Namespace: pickOne(c, "a", "b"), Name: pickOne(c, "web-1", "web-2", "web-api-1", "dns-1", "hand", "made"),
		Service: pickOne(c, "web", "web", "web-api", "dns", ""), AddressType: "IPv4"}
	if !is4 {
		s.AddressType = "IPv6"
	}
	for i, name := range []string{"http", "udp"} {
		if c.IntN(3) > 0 {
			s.Ports = append(s.Ports, k8s.SlicePort{Name: name, Protocol: []string{"TCP", "UDP"}[i], Port: 8080 + uint16(c.IntN(2))})
		}
	}
	hints := c.IntN(2) == 0
	for range c.IntN(4) {
		// What is said of an address is the same in all slices but for its state, as of a pod.
		n := c.addr(is4, pickOne(c, blockPods, blockPods, blockPods, blockNodes), 5)
		last := n.AsSlice()[len(n.AsSlice())-1]
		e := k8s.SliceEndpoint{Addrs: []netip.Addr{n}, Ready: c.IntN(2) == 0, Terminating: c.IntN(3) == 0,
			NodeName: []string{"one", "two", ""}[last%3], Zone: []string{"x", "y"}[last%2], Pod: fmt.Sprint("a/pod-", last)}
		e.Serving = e.Ready || c.IntN(2) == 0
		if hints || c.IntN(5) == 0 {
			e.ForZones = []string{pickOne(c, "x", "y")}
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

func (c *churn) randomPod() *k8s.Pod {
	c.made += int64(c.IntN(2))
	p := &k8s.Pod{Namespace: "a", Name: pickOne(c, "p", "q"), UID: pickOne(c, "u", "v"), Created: c.made, HostNetwork: c.IntN(10) == 0,
		Phase: pickOne(c, "Running", "Pending", "Failed", "Succeeded")}
	for _, is4 := range c.families() {
		if c.IntN(5) > 0 {
			p.PodIPs = append(p.PodIPs, c.addr(is4, blockPods, 5))
		}
	}
	for _, protocol := range []string{"TCP", "UDP"}[:c.IntN(3)] {
		p.HostPorts = append(p.HostPorts, k8s.HostPort{Protocol: protocol, Port: pickOne(c, uint16(53), 54, 30001), Container: 8080})
	}
	return p
}

func (c *churn) randomNode() *k8s.Node {
	n := &k8s.Node{Name: pickOne(c, "one", "two"), Addresses: []k8s.NodeAddress{{Type: "InternalIP", Address: c.addr(c.IntN(2) == 0, blockNodes, 3).String()}}}
	if c.IntN(3) > 0 {
		n.Labels = map[string]string{"topology.kubernetes.io/zone": pickOne(c, "x", "y")}
	}
	if c.IntN(2) == 0 {
		n.PodCIDRs = []string{"10.1.0.0/24"}
	}
	return n
}

func (c *churn) randomAddress() nodeaddresses.Address {
	return nodeaddresses.Address{Addr: c.addr(c.IntN(2) == 0, blockNodes, 3), Device: "eth0", NodePort: c.IntN(2) == 0}
}

// change puts an object in the place of another, or removes one.
func (c *churn) change() {
	row := pickOne[func() any](c, func() any { return c.randomService() }, func() any { return c.randomService() }, func() any { return c.randomSlice() },
		func() any { return c.randomSlice() }, func() any { return c.randomSlice() }, func() any { return c.randomPod() }, func() any { return c.randomNode() },
		func() any { return c.randomAddress() })()
	if c.IntN(4) == 0 {
		c.remove(row) // of that name, if there is one
		return
	}
	c.insert(row)
}

// TestChurn_TablesEqualANaiveModel changes objects at random, and after each few holds the tables against what a plain model makes of
// all objects.
func TestChurn_TablesEqualANaiveModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			c := &churn{Rand: rand.New(rand.NewPCG(6, seed)), bench: newBench(t, DefaultConfig, &fakeIDs{})}
			c.state(sources.Synced)
			c.step()
			for i := range 300 {
				for range 1 + c.IntN(3) {
					c.change()
				}
				c.step()
				c.agree(fmt.Sprint("step ", i))
			}
		})
	}
}

func at(text string) loadbalancer.Address {
	a, err := loadbalancer.ParseAddress(text)
	if err != nil {
		panic(err)
	}
	return a
}
