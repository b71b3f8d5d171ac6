package servicecontroller

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/serviceannotations"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
	"github.com/waggle-net/waggle/pkg/tables/services"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// web returns a Service with one port, modified by change.
func web(change func(*k8s.Service)) *k8s.Service {
	s := &k8s.Service{Namespace: "a", Name: "web", Type: "LoadBalancer", ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		Ports: []k8s.ServicePort{{Name: "http", Protocol: "TCP", Port: 80, NodePort: 30080}}, IngressIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		ExternalIPs: []netip.Addr{netip.MustParseAddr("192.0.2.2")}}
	if change != nil {
		change(s)
	}
	return s
}

// endpointsOf returns a slice of web. Each text describes an endpoint, for example "1L r x": the last digit of its address, L (this node) or - (another node);
// the flags r (ready), s (serving) and t (terminating); hints for zones, or for nodes with the prefix "node:".
func endpointsOf(texts ...string) *k8s.EndpointSlice {
	s := &k8s.EndpointSlice{Namespace: "a", Name: "web-1", Service: "web", AddressType: "IPv4", Ports: []k8s.SlicePort{{Name: "http", Protocol: "TCP", Port: 8080}}}
	for _, text := range texts {
		f := strings.Fields(text)
		e := k8s.SliceEndpoint{Addrs: []netip.Addr{netip.MustParseAddr("10.1.0." + f[0][:1])}, NodeName: "two", Pod: "a/" + f[0][:1],
			Ready: strings.Contains(f[1], "r"), Serving: strings.ContainsAny(f[1], "rs"), Terminating: strings.Contains(f[1], "t")}
		if f[0][1] == 'L' {
			e.NodeName = "one"
		}
		for _, hint := range f[2:] {
			if node, is := strings.CutPrefix(hint, "node:"); is {
				e.ForNodes = append(e.ForNodes, node)
			} else {
				e.ForZones = append(e.ForZones, hint)
			}
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

// shown formats the frontends of web: the kind; the last character of the backends' addresses for all or for external clients; after a slash for clients on
// this node; then flags.
func (b *bench) shown() string {
	txn := b.db.ReadTxn()
	byID := map[uint32]string{}
	for x := range b.c.Backends.All(txn) {
		text := x.Addr.String()
		byID[x.ID] = text[len(text)-1:]
	}
	names := func(ids []uint32) (s string) {
		var list []string
		for _, id := range ids {
			list = append(list, byID[id])
		}
		slices.Sort(list)
		return strings.Join(list, "")
	}
	var out []string
	for f := range b.c.Frontends.All(txn) {
		text := fmt.Sprintf("%s:%s", f.Kind, names(f.Backends))
		if f.TwoScopes {
			text += "/" + names(f.Internal)
		}
		for _, flag := range []struct {
			is   bool
			name string
		}{{f.Loopback, "loopback"}, {f.LocalOnly, "local"}, {f.Drop, "drop"}, {f.Outside, "out"}, {f.Maglev, "maglev"}, {f.Affinity > 0, fmt.Sprint(f.Affinity, "s")},
			{f.Deny, "deny"}, {len(f.Ranges) > 0, fmt.Sprint(f.Ranges)}} {
			if flag.is {
				text += " " + flag.name
			}
		}
		out = append(out, text)
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

func TestBehaviour(t *testing.T) {
	t.Parallel()
	local := func(s *k8s.Service) { s.ExternalLocal = true }
	clusterIP := func(s *k8s.Service) { s.Type, s.ExternalIPs, s.Ports[0].NodePort = "ClusterIP", nil, 0 }
	inside := func(s *k8s.Service) { clusterIP(s); s.InternalLocal = true }
	for name, c := range map[string]struct {
		config  func(*Config)
		service *k8s.Service
		slice   *k8s.EndpointSlice
		want    string
	}{
		"every kind": {nil, web(nil), endpointsOf("1L r", "2- r"),
			"ClusterIP:12, ExternalIPs:12 out, LoadBalancer:12 out, NodePort:12 loopback, NodePort:12 out"},
		"policy Local leaves clients inside all":        {nil, web(local), endpointsOf("1L r", "2- r"), "ClusterIP:12, ExternalIPs:1/12 local out, LoadBalancer:1/12 local out, NodePort:1/12 local out, NodePort:12 loopback"},
		"policy Local and no local backend":             {nil, web(local), endpointsOf("2- r"), "ClusterIP:2, ExternalIPs:/2 local drop out, LoadBalancer:/2 local drop out, NodePort:/2 local drop out, NodePort:2 loopback"},
		"policy Local and no backend":                   {nil, web(local), endpointsOf("2- -"), "ClusterIP:, ExternalIPs:/ local out, LoadBalancer:/ local out, NodePort: loopback, NodePort:/ local out"},
		"policy Local with a terminating local backend": {nil, web(local), endpointsOf("1L st", "2- r"), "ClusterIP:2, ExternalIPs:1/2 local out, LoadBalancer:1/2 local out, NodePort:1/2 local out, NodePort:2 loopback"},
		"internal policy Local":                         {nil, web(inside), endpointsOf("1L r", "2- r"), "ClusterIP:1 local"},
		"internal policy Local and no local backend":    {nil, web(inside), endpointsOf("2- r"), "ClusterIP: local drop"},
		"ending ones only when none is active":          {nil, web(clusterIP), endpointsOf("1L st", "2- r"), "ClusterIP:2"},
		"ending ones":                                   {nil, web(clusterIP), endpointsOf("1L st", "2- t", "3- -"), "ClusterIP:1"},
		"no ready backend":                              {nil, web(clusterIP), endpointsOf("1L -"), "ClusterIP:"},
		"no backend, and drop":                          {func(c *Config) { c.NoBackend = drop }, web(clusterIP), endpointsOf("1L -"), "ClusterIP: drop"},
		"unready addresses are published":               {nil, web(func(s *k8s.Service) { clusterIP(s); s.PublishNotReadyAddrs = true }), endpointsOf("1L -", "2- r"), "ClusterIP:12"},
		"zones":                                         {nil, web(clusterIP), endpointsOf("1- r x", "2- r y", "3- r x y"), "ClusterIP:13"},
		"zones, one without":                            {nil, web(clusterIP), endpointsOf("1- r x", "2- r"), "ClusterIP:12"},
		"zones, none of this node":                      {nil, web(clusterIP), endpointsOf("1- r y", "2- r z"), "ClusterIP:12"},
		"zones, unready backends do not count":          {nil, web(clusterIP), endpointsOf("1- r x", "2- r y", "3- -"), "ClusterIP:1"},
		"zones without topology mode":                   {func(c *Config) { c.Topology = false }, web(clusterIP), endpointsOf("1- r x", "2- r y"), "ClusterIP:12"},
		"zones are nothing to policy Local":             {nil, web(func(s *k8s.Service) { inside(s) }), endpointsOf("1L r y", "2L r x"), "ClusterIP:12 local"},
		"hints of nodes precede zones":                  {nil, web(clusterIP), endpointsOf("1- r x node:one", "2- r x node:two"), "ClusterIP:1"},
		"zones when no node is meant":                   {nil, web(clusterIP), endpointsOf("1- r x node:two", "2- r y node:two"), "ClusterIP:1"},
		"affinity":                                      {nil, web(func(s *k8s.Service) { clusterIP(s); s.Affinity = 90e9 }), endpointsOf("1- r"), "ClusterIP:1 90s"},
		"ranges are those of the load balancer": {nil, web(func(s *k8s.Service) { s.SourceRanges = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")} }), endpointsOf("1- r"),
			"ClusterIP:1, ExternalIPs:1 out, LoadBalancer:1 out [198.51.100.0/24], NodePort:1 loopback, NodePort:1 out"},
		"no external IPs":          {func(c *Config) { c.ExternalIPs = false }, web(func(s *k8s.Service) { s.Type = "ClusterIP" }), endpointsOf("1- r"), "ClusterIP:1"},
		"ClusterIPs for all":       {func(c *Config) { c.ExternalClusterIP = true }, web(clusterIP), endpointsOf("1- r"), "ClusterIP:1 out"},
		"another proxy's":          {nil, web(func(s *k8s.Service) { s.Labels = map[string]string{k8s.LabelServiceProxyName: "x"} }), endpointsOf("1- r"), ""},
		"for this proxy":           {func(c *Config) { c.ProxyName = "x" }, web(func(s *k8s.Service) { clusterIP(s); s.Labels = map[string]string{k8s.LabelServiceProxyName: "x"} }), endpointsOf("1- r"), "ClusterIP:1"},
		"not for this proxy":       {func(c *Config) { c.ProxyName = "x" }, web(nil), endpointsOf("1- r"), ""},
		"headless":                 {nil, web(func(s *k8s.Service) { s.Headless, s.ClusterIPs = true, nil }), endpointsOf("1- r"), ""},
		"headless by its label":    {nil, web(func(s *k8s.Service) { s.Labels = map[string]string{k8s.LabelHeadless: ""} }), endpointsOf("1- r"), ""},
		"ExternalName":             {nil, web(func(s *k8s.Service) { s.Type = "ExternalName" }), endpointsOf("1- r"), ""},
		"one kind":                 {nil, web(func(s *k8s.Service) { s.Annotations = map[string]string{serviceannotations.Type: "LoadBalancer"} }), endpointsOf("1- r"), "LoadBalancer:1 out"},
		"another node's":           {nil, web(func(s *k8s.Service) { s.Annotations = map[string]string{serviceannotations.Node: "edge"} }), endpointsOf("1- r"), ""},
		"status of another type":   {nil, web(func(s *k8s.Service) { s.Type, s.ExternalIPs = "NodePort", nil }), endpointsOf("1- r"), "ClusterIP:1, NodePort:1 loopback, NodePort:1 out"},
		"node port outside":        {nil, web(func(s *k8s.Service) { s.Type, s.ExternalIPs, s.Ports[0].NodePort = "NodePort", nil, 22 }), endpointsOf("1- r"), "ClusterIP:1"},
		"ports of other names":     {nil, web(func(s *k8s.Service) { clusterIP(s); s.Ports[0].Name = "x" }), endpointsOf("1- r"), "ClusterIP:"},
		"port of another protocol": {nil, web(func(s *k8s.Service) { clusterIP(s); s.Ports[0].Protocol = "UDP" }), endpointsOf("1- r"), "ClusterIP:"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := DefaultConfig
			if c.config != nil {
				c.config(&config)
			}
			b := newBench(t, config, &fakeIDs{})
			b.insert(c.service, c.slice, &k8s.Node{Name: "one", Labels: map[string]string{"topology.kubernetes.io/zone": "x"}},
				nodeaddresses.Address{Addr: netip.MustParseAddr("10.0.0.1"), Device: "eth0", NodePort: true})
			b.state(sources.Synced)
			b.step()
			if got := b.shown(); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func (b *bench) problemsOf(name string) string {
	row, _, _ := b.c.Services.Get(b.db.ReadTxn(), services.ByName(name))
	if row == nil {
		return "no row"
	}
	return strings.Join(row.Problems, "; ")
}

func (b *bench) expect(what, got, want string) {
	b.t.Helper()
	if got != want {
		b.t.Errorf("%s:\ngot  %s\nwant %s", what, got, want)
	}
}

// TestHostPort_PodWithSameName: the host port of a pod with the same name and another UID is another service. When a pod has ended, another pod gets its
// port.
func TestHostPort_PodWithSameName(t *testing.T) {
	t.Parallel()
	b := newBench(t, DefaultConfig, &fakeIDs{})
	pod := func(name, uid, ip, phase string, hostIP string, made int64) *k8s.Pod {
		p := &k8s.Pod{Namespace: "a", Name: name, UID: uid, Created: made, Phase: phase, PodIPs: []netip.Addr{netip.MustParseAddr(ip)},
			HostPorts: []k8s.HostPort{{Protocol: "TCP", Port: 8080, Container: 80}}}
		if hostIP != "" {
			p.HostPorts[0].Addr = netip.MustParseAddr(hostIP)
		}
		return p
	}
	b.insert(nodeaddresses.Address{Addr: netip.MustParseAddr("10.0.0.1"), Device: "eth0", NodePort: true}, pod("p", "u1", "10.1.0.1", "Running", "", 1))
	b.state(sources.Synced)
	b.step()
	b.expect("first", b.owners(), "10.0.0.1:8080/TCP HostPort a/p:host-port/u1/8080[], 127.0.0.1:8080/TCP HostPort a/p:host-port/u1/8080[]")
	b.insert(pod("p", "u2", "10.1.0.2", "Running", "", 2))
	b.step()
	b.expect("again", b.owners(), "10.0.0.1:8080/TCP HostPort a/p:host-port/u2/8080[], 127.0.0.1:8080/TCP HostPort a/p:host-port/u2/8080[]")
	b.expect("the first is gone", b.problemsOf("a/p:host-port/u1/8080"), "no row")
	b.insert(pod("q", "v", "10.1.0.3", "Running", "10.0.0.1", 3), pod("r", "w", "10.1.0.4", "Running", "192.0.2.9", 3))
	b.step()
	b.expect("two", b.owners(), "10.0.0.1:8080/TCP HostPort a/p:host-port/u2/8080[a/q:host-port/v/8080], 127.0.0.1:8080/TCP HostPort a/p:host-port/u2/8080[]")
	b.expect("elsewhere", b.problemsOf("a/r:host-port/w/8080"), "host port 8080: hostIP 192.0.2.9 is not an address of this node")
	b.insert(pod("p", "u2", "10.1.0.2", "Succeeded", "", 2))
	b.step()
	b.expect("ended", b.owners(), "10.0.0.1:8080/TCP HostPort a/q:host-port/v/8080[]")
}

// TestCopyOnDisk_KeepsFrontendsInMaps: until the inputs are synced with the API server, a frontend of the previous run gets no row, and a new frontend does.
// Ids of the previous run are kept, and ids of removed addresses are released.
func TestCopyOnDisk_KeepsFrontendsInMaps(t *testing.T) {
	t.Parallel()
	b := newBench(t, DefaultConfig, &fakeIDs{
		frontends: map[loadbalancer.Address]uint32{at("10.96.0.1:80/TCP"): 7, at("10.96.0.9:80/TCP"): 9},
		backends:  map[loadbalancer.Address]uint32{at("10.1.0.1:8080/TCP"): 4, at("10.1.0.9:8080/TCP"): 5, at("10.1.0.8:8080/TCP"): 5},
	})
	s := web(func(s *k8s.Service) { s.Type, s.ExternalIPs, s.Ports[0].NodePort = "ClusterIP", nil, 0 })
	b.insert(s, endpointsOf("1- r"), outer("b", "new", "10.96.0.2", "", 0))
	b.state(sources.Snapshot)
	b.step()
	b.expect("from the copy", b.owners(), "10.96.0.2:80/TCP ClusterIP b/new[]")
	if done, _ := b.c.Frontends.Initialized(b.db.ReadTxn()); done {
		t.Error("the tables are complete by a copy")
	}
	b.state(sources.Synced)
	b.step()
	b.expect("synced", b.owners(), "10.96.0.1:80/TCP ClusterIP a/web[], 10.96.0.2:80/TCP ClusterIP b/new[]")
	if done, _ := b.c.Frontends.Initialized(b.db.ReadTxn()); !done {
		t.Error("the tables are not complete")
	}
	ids := func() (out string) {
		txn := b.db.ReadTxn()
		for f := range b.c.Frontends.All(txn) {
			out += fmt.Sprint(f.Address, "=", f.ID, " ")
		}
		for x := range b.c.Backends.All(txn) {
			out += fmt.Sprint(x.Address, "=", x.ID, " ")
		}
		return out
	}
	b.expect("ids", ids(), "10.96.0.1:80/TCP=7 10.96.0.2:80/TCP=10 10.1.0.1:8080/TCP=4 ")
	b.remove(s)
	b.step()
	b.insert(s)
	b.step()
	b.expect("ids after it came back", ids(), "10.96.0.1:80/TCP=11 10.96.0.2:80/TCP=10 10.1.0.1:8080/TCP=6 ")
}

// TestIDs_NotReusedImmediately: ids are allocated in a circle, and used ids are skipped.
func TestIDs_NotReusedImmediately(t *testing.T) {
	t.Parallel()
	s := newIDs(map[loadbalancer.Address]uint32{at("10.0.0.1:1/TCP"): 1<<32 - 2, at("10.0.0.2:1/TCP"): 1, at("10.0.0.3:1/TCP"): 3, at("10.0.0.4:1/TCP"): 3})
	for i, want := range []uint32{1<<32 - 1, 2, 4} { // 0 is no id, 1 and 3 are used
		if got := s.assign(at(fmt.Sprintf("10.0.1.%d:1/TCP", i))); got != want {
			t.Errorf("number %d is %d, want %d", i, got, want)
		}
	}
	if got := s.assign(at("10.0.0.2:1/TCP")); got != 1 {
		t.Errorf("restored: %d", got)
	}
	s.free(at("10.0.1.1:1/TCP"), 2)
	if got := s.assign(at("10.0.1.1:1/TCP")); got != 5 {
		t.Errorf("after number 2 was given back: %d, want 5", got)
	}
	if s.last = 1; s.assign(at("10.0.1.4:1/TCP")) != 2 || s.assign(at("10.0.1.5:1/TCP")) != 6 {
		t.Errorf("one round later: %d, want 2 and then 6", s.last)
	}
}

// FuzzChurn runs the random churn with a seed and a number of steps, so that inputs that failed once can be kept as regression tests.
func FuzzChurn(f *testing.F) {
	f.Add(uint64(1), uint8(50))
	f.Fuzz(func(t *testing.T, seed uint64, steps uint8) {
		c := &churn{Rand: rand.New(rand.NewPCG(seed, seed)), bench: newBench(t, DefaultConfig, &fakeIDs{})}
		c.state(sources.Synced)
		for i := range steps {
			c.change()
			c.step()
			c.agree(fmt.Sprint("step ", i))
		}
	})
}

// TestNewRules_NamesTheFlag: the error about an invalid value names the flag.
func TestNewRules_NamesTheFlag(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*Config){
		`--service-no-backend-response="x"`: func(c *Config) { c.NoBackend = "x" },
		`--ipv4-service-range="fd00::/8"`:   func(c *Config) { c.IPv4Range = "fd00::/8" },
		`--ipv6-service-range="10.96.0.0"`:  func(c *Config) { c.IPv6Range = "10.96.0.0" },
	} {
		config := DefaultConfig
		change(&config)
		if _, err := newRules(config, plain, agentconfig.Listeners{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
