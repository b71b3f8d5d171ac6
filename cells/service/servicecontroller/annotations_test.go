package servicecontroller

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/pkg/kubernetes/k8sobjects"
	"github.com/waggle-net/waggle/pkg/serviceannotations"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// TestAnnotations: an annotation of a Service is in force, or has no effect and is reported as a problem.
func TestAnnotations(t *testing.T) {
	t.Parallel()
	const (
		random = "ClusterIP:1, ExternalIPs:1 out, LoadBalancer:1 out [192.0.2.0/24], NodePort:1 loopback, NodePort:1 out"
		denied = "ClusterIP:1, ExternalIPs:1 out, LoadBalancer:1 out deny [192.0.2.0/24], NodePort:1 loopback, NodePort:1 out"
		table  = "ClusterIP:1, ExternalIPs:1 out maglev, LoadBalancer:1 out maglev [192.0.2.0/24], NodePort:1 loopback, NodePort:1 out maglev"
	)
	for name, c := range map[string]struct {
		maglev, annotated bool // the flags
		key, value        string
		want, problem     string
	}{
		"ranges that deny":              {false, false, serviceannotations.SourceRanges, "deny", denied, ""},
		"ranges that allow":             {false, false, serviceannotations.SourceRanges, "allow", random, ""},
		"ranges that do neither":        {false, false, serviceannotations.SourceRanges, "no", random, `annotation service.cilium.io/src-ranges-policy="no": use allow or deny`},
		"a key without effect":          {false, false, "service.cilium.io/global", "true", random, "annotation service.cilium.io/global: not supported"},
		"for this node by a selector":   {false, false, serviceannotations.NodeSelector, "service.cilium.io/node in (edge)", random, ""},
		"for other nodes by a selector": {false, false, serviceannotations.NodeSelector, "service.cilium.io/node!=edge", "", "no row"},

		"maglev for one":               {false, true, serviceannotations.Algorithm, "maglev", table, ""},
		"random for one":               {true, false, serviceannotations.Algorithm, "random", random, ""},
		"random as all":                {false, true, serviceannotations.Algorithm, "random", random, ""},
		"maglev as all":                {true, false, serviceannotations.Algorithm, "maglev", table, ""},
		"maglev without capacity":      {false, false, serviceannotations.Algorithm, "maglev", random, "annotation service.cilium.io/lb-algorithm=maglev: set --bpf-lb-algorithm-annotation, which allocates tables"},
		"an unknown algorithm":         {true, true, serviceannotations.Algorithm, "least", table, `annotation service.cilium.io/lb-algorithm="least": use random or maglev`},
		"nothing is requested":         {false, true, "other", "maglev", random, ""},
		"default forwarding":           {false, false, serviceannotations.Forwarding, "snat", random, ""},
		"direct replies":               {false, false, serviceannotations.Forwarding, "dsr", random, `annotation service.cilium.io/forwarding-mode="dsr": there is snat only`},
		"an unknown kind":              {false, false, serviceannotations.Type, "ExternalName", random, `annotation service.cilium.io/type="ExternalName": use ClusterIP, NodePort or LoadBalancer`},
		"node ports only":              {false, false, serviceannotations.Type, "NodePort", "NodePort:1 loopback, NodePort:1 out", ""},
		"ClusterIP only":               {true, false, serviceannotations.Type, "ClusterIP", "ClusterIP:1", ""},
		"for nodes with this label":    {false, false, serviceannotations.Node, "edge", random, ""},
		"for nodes with another label": {false, false, serviceannotations.Node, "core", "", "no row"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, DefaultConfig, &fakeIDs{})
			b.c.Rules.agent.Maglev, b.c.Rules.agent.AlgorithmAnnotation = c.maglev, c.annotated
			s := web(func(s *k8s.Service) {
				s.Annotations, s.SourceRanges = map[string]string{c.key: c.value}, []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
			})
			b.insert(s, endpointsOf("1- r"), &k8s.Node{Name: "one", Labels: map[string]string{serviceannotations.Node: "edge"}},
				nodeaddresses.Address{Addr: netip.MustParseAddr("10.0.0.1"), Device: "eth0", NodePort: true})
			b.state(sources.Synced)
			b.step()
			b.expect("frontends", b.shown(), c.want)
			b.expect("problems", b.problemsOf(s.Key()), c.problem)
		})
	}
}

// TestAnnotations_DenyWithoutReadableRanges: if no range that denies can be read, the load balancer's addresses serve no external client.
func TestAnnotations_DenyWithoutReadableRanges(t *testing.T) {
	t.Parallel()
	row, err := k8sobjects.Service(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "web", Annotations: map[string]string{serviceannotations.SourceRanges: "deny"}},
		Spec:   corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, LoadBalancerSourceRanges: []string{"010.0.0.0/8"}},
		Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}}}})
	if err != nil {
		t.Fatal(err)
	}
	row.Ports = web(nil).Ports
	b := newBench(t, DefaultConfig, &fakeIDs{})
	b.insert(row)
	b.state(sources.Synced)
	b.step()
	f := b.c.frontend(b.db.ReadTxn(), at("192.0.2.1:80/TCP"))
	for _, client := range []string{"10.0.0.9", "198.51.100.9", "2001:db8::9"} {
		if f == nil || f.Admits(netip.MustParseAddr(client)) {
			t.Errorf("%s is allowed by %+v", client, f)
		}
	}
	more := *row
	more.SourceRanges = append(slices.Clone(row.SourceRanges), netip.MustParsePrefix("10.0.0.0/8"))
	b.insert(&more)
	b.step()
	if f = b.c.frontend(b.db.ReadTxn(), f.Address); f.Admits(netip.MustParseAddr("10.0.0.9")) || !f.Admits(netip.MustParseAddr("198.51.100.9")) {
		t.Errorf("with another range: %+v", f)
	}
}

// TestAnnotations_ParsedOncePerChange: a change of endpoints does not parse the annotations of the Service again, and the parsed annotations of a deleted
// Service are removed.
func TestAnnotations_ParsedOncePerChange(t *testing.T) {
	t.Parallel()
	b := newBench(t, DefaultConfig, &fakeIDs{})
	s := web(func(s *k8s.Service) { s.Annotations = map[string]string{serviceannotations.NodeSelector: "!gpu"} })
	b.insert(s, endpointsOf("1- r"))
	b.state(sources.Synced)
	b.step()
	first := b.c.in.wanted[s.Key()]
	b.insert(endpointsOf("1- r", "2- r"))
	b.step()
	if got := b.c.in.wanted[s.Key()]; first == nil || got != first {
		t.Errorf("parsed %p, then %p", first, got)
	}
	b.remove(s)
	b.step()
	if len(b.c.in.wanted) != 0 {
		t.Errorf("kept: %v", b.c.in.wanted)
	}
}

// TestAnnotations_Change: a new or changed annotation changes existing rows and keeps their ids.
func TestAnnotations_Change(t *testing.T) {
	t.Parallel()
	b := newBench(t, DefaultConfig, &fakeIDs{})
	b.c.Rules.agent.AlgorithmAnnotation = true
	clusterIP := func(annotations map[string]string) *k8s.Service {
		return web(func(s *k8s.Service) {
			s.Type, s.IngressIPs, s.Ports[0].NodePort, s.Annotations = "ClusterIP", nil, 0, annotations
		})
	}
	b.insert(clusterIP(nil), endpointsOf("1- r"))
	b.state(sources.Synced)
	b.step()
	b.expect("at first", b.shown(), "ClusterIP:1, ExternalIPs:1 out")
	ids := map[string]uint32{}
	for f := range b.c.Frontends.All(b.db.ReadTxn()) {
		ids[f.Address.String()] = f.ID
	}
	b.insert(clusterIP(map[string]string{serviceannotations.Algorithm: "maglev"}))
	b.step()
	b.expect("with the annotation", b.shown(), "ClusterIP:1, ExternalIPs:1 out maglev")
	b.insert(clusterIP(map[string]string{serviceannotations.Algorithm: "random"}))
	b.step()
	b.expect("with another", b.shown(), "ClusterIP:1, ExternalIPs:1 out")
	for f := range b.c.Frontends.All(b.db.ReadTxn()) {
		if ids[f.Address.String()] != f.ID {
			t.Errorf("%s had id %d, and has %d", f.Address, ids[f.Address.String()], f.ID)
		}
	}
}
