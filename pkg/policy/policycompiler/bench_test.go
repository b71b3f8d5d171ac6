package policycompiler

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"

	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/policy"
)

// cluster is a large cluster, in which each identity is an application of a namespace.
type cluster struct {
	identities map[uint32]map[string]string
	policies   []*policy.Policy
	subjects   []Subject
}

const appsPerNamespace = 20

func labelsOf(i int) map[string]string {
	return map[string]string{
		"k8s:app":                              fmt.Sprintf("app-%d", i%appsPerNamespace),
		"k8s:io.kubernetes.pod.namespace":      fmt.Sprintf("ns-%d", i/appsPerNamespace),
		"k8s:io.cilium.k8s.policy.cluster":     "default",
		"k8s:version":                          fmt.Sprintf("v%d", i%3),
		"k8s:io.cilium.k8s.namespace.labels.a": "b",
	}
}

func label(key, value string) policy.Requirement {
	return policy.Requirement{Source: "k8s", Key: key, Operator: policy.In, Values: []string{value}}
}

// large returns a cluster with the given numbers of rules, three in each policy, of identities and of subjects. With all set, every policy selects all subjects
// of namespace 0, so that an endpoint there has all rules. Otherwise each policy selects one application of a namespace.
func large(rules, identities, subjects int, all bool) *cluster {
	c := &cluster{identities: map[uint32]map[string]string{}}
	for i := range identities {
		c.identities[identity.ClusterMin+uint32(i)] = labelsOf(i)
	}
	namespaces := identities / appsPerNamespace
	for i := range rules / 3 {
		p := &policy.Policy{Ref: policy.Ref{Kind: policy.Kubernetes, Namespace: "ns-0", Name: fmt.Sprint("policy-", i)}}
		subject := []policy.Requirement{label("io.kubernetes.pod.namespace", "ns-0")}
		if !all {
			subject = []policy.Requirement{label("io.kubernetes.pod.namespace", fmt.Sprint("ns-", i%namespaces)),
				label("app", fmt.Sprint("app-", i/namespaces%appsPerNamespace))}
		}
		one := policy.Part{Path: "spec", Subject: policy.Selector{Requirements: subject}, IsolatesIngress: true}
		for k := range 3 {
			n := i*3 + k
			peers := policy.Selector{Requirements: []policy.Requirement{label("io.kubernetes.pod.namespace", fmt.Sprint("ns-", n%namespaces))}}
			if n%4 != 0 { // one rule in four is about a whole namespace
				peers.Requirements = append(peers.Requirements, label("app", fmt.Sprint("app-", n/namespaces%appsPerNamespace)))
			}
			port := uint16(1000 + n%3000)
			one.Rules = append(one.Rules, policy.Rule{Path: fmt.Sprintf("spec.ingress[%d]", k), Direction: policy.Ingress,
				Peers: policy.Peers{List: []policy.Peer{{Labels: &peers}}},
				Ports: policy.Ports{List: []policy.Port{{Protocol: policy.ProtocolTCP, Low: port, High: port}}}})
		}
		p.Parts = []policy.Part{one}
		c.policies = append(c.policies, p)
	}
	for i := range subjects {
		labels := labelsOf(i)
		if all {
			labels = labelsOf(i % appsPerNamespace)
		}
		c.subjects = append(c.subjects, Subject{ID: uint16(i + 1), Labels: labels})
	}
	return c
}

func (c *cluster) resolver() *Resolver {
	r := New(policy.Options{Mode: policy.Default, AllowLocalhost: true})
	r.SetClasses(true)
	r.StartClasses(nil, 0)
	for _, p := range c.policies {
		r.UpsertPolicy(p)
	}
	for number, labels := range c.identities {
		r.UpsertIdentity(number, labels)
	}
	for _, s := range c.subjects {
		r.UpsertSubject(s)
	}
	return r
}

func (c *cluster) compile(r *Resolver) (entries int) {
	seen := map[*Compiled]bool{}
	for _, s := range c.subjects {
		ingress, _ := r.Compile(s.ID)
		if n, _ := ingress.Enforced.Len(); !seen[ingress.Enforced] {
			seen[ingress.Enforced] = true
			entries += n
		}
	}
	return entries
}

// layouts runs a benchmark with both distributions of rules over endpoints.
func layouts(b *testing.B, run func(*testing.B, bool)) {
	for name, all := range map[string]bool{"one policy of all rules": true, "a policy for each endpoint": false} {
		b.Run(name, func(b *testing.B) { run(b, all) })
	}
}

// BenchmarkResolve compiles 3,000 rules and 1,000 identities with a new resolver, for 100 endpoints.
func BenchmarkResolve(b *testing.B) {
	layouts(b, func(b *testing.B, all bool) {
		c := large(3000, 1000, 100, all)
		b.ReportAllocs()
		entries := 0
		for b.Loop() {
			entries = c.compile(c.resolver())
		}
		b.ReportMetric(float64(entries), "entries")
	})
}

// BenchmarkOneIdentity adds one identity and removes it again, for 100 endpoints.
func BenchmarkOneIdentity(b *testing.B) {
	layouts(b, func(b *testing.B, all bool) {
		c := large(3000, 1000, 100, all)
		r := c.resolver()
		before := c.compile(r)
		extra := identity.ClusterMin + uint32(len(c.identities))
		b.ReportAllocs()
		after := 0
		for b.Loop() {
			r.UpsertIdentity(extra, labelsOf(1))
			after = c.compile(r)
			r.DeleteIdentity(extra)
			c.compile(r)
		}
		if after <= before {
			b.Fatalf("%d entries, and %d with one identity more", before, after)
		}
		b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(2*b.N), "us/identity")
	})
}

// BenchmarkAllPods adds one identity and removes it again, for an endpoint with 50 rules that each select all pods.
func BenchmarkAllPods(b *testing.B) {
	for _, n := range []int{1000, 65000} {
		b.Run(fmt.Sprint(n, " identities"), func(b *testing.B) {
			c := large(0, n, 1, true)
			p := &policy.Policy{Ref: policy.Ref{Kind: policy.Kubernetes, Namespace: "ns-0", Name: "all-pods"}, Parts: []policy.Part{{IsolatesIngress: true}}}
			for port := range uint16(50) {
				p.Parts[0].Rules = append(p.Parts[0].Rules, policy.Rule{Path: fmt.Sprintf("spec.ingress[%d]", port), Direction: policy.Ingress,
					Peers: choose(exists("io.kubernetes.pod.namespace")),
					Ports: policy.Ports{List: []policy.Port{{Protocol: policy.ProtocolTCP, Low: 1000 + 2*port, High: 1000 + 2*port}}}})
			}
			c.policies = append(c.policies, p)
			r := c.resolver()
			entries := c.compile(r)
			extra := identity.ClusterMin + uint32(n)
			b.ReportAllocs()
			for b.Loop() {
				r.UpsertIdentity(extra, labelsOf(0))
				c.compile(r)
				r.DeleteIdentity(extra)
				c.compile(r)
			}
			b.ReportMetric(float64(entries), "entries")
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/1000/float64(2*b.N), "us/identity")
		})
	}
}

// BenchmarkOnePolicy changes one rule of one policy, for 100 endpoints.
func BenchmarkOnePolicy(b *testing.B) {
	layouts(b, func(b *testing.B, all bool) {
		c := large(3000, 1000, 100, all)
		r := c.resolver()
		c.compile(r)
		versions := [2]*policy.Policy{c.policies[7], large(3000, 1000, 100, all).policies[7]}
		versions[1].Parts[0].Rules[0].Ports.List[0].High++
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			r.UpsertPolicy(versions[i%2])
			c.compile(r)
		}
	})
}

// BenchmarkCIDRs compiles a policy of 16,000 CIDRs, with a new resolver and after one named CIDR is added or removed.
func BenchmarkCIDRs(b *testing.B) {
	p := &policy.Policy{Ref: policy.Ref{Kind: policy.Cilium, Namespace: "a", Name: "a"}}
	rule := policy.Rule{Path: "spec.egress[0]", Direction: policy.Egress, Ports: policy.Ports{Any: true}}
	for i := range 16000 {
		prefix := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)
		rule.Peers.List = append(rule.Peers.List, policy.Peer{CIDR: prefix, Scope: policy.Outside})
	}
	p.Parts = []policy.Part{{IsolatesEgress: true, Rules: []policy.Rule{rule}}}
	s := newState(policy.Options{Mode: policy.Default})
	s.policies[p.Ref], s.subjects[1] = p, Subject{ID: 1}
	r := s.resolver()
	for i, prefix := range r.NamedCIDRs() {
		s.cidrs[prefix] = 0x01000001 + uint32(i)
	}
	b.Run("from nothing", func(b *testing.B) {
		for b.Loop() {
			_, egress := s.resolver().Compile(1)
			if n, _ := egress.Enforced.Len(); n != 16000 {
				b.Fatal(n, "entries")
			}
		}
	})
	b.Run("one more", func(b *testing.B) {
		r := s.resolver()
		extra := netip.MustParsePrefix("10.0.0.0/25")
		for i := 0; b.Loop(); i++ {
			if delete(s.cidrs, extra); i%2 == 0 {
				s.cidrs[extra] = 0x01ffffff
			}
			r.SetCIDRs(s.cidrs)
			_, egress := r.Compile(1)
			if n, _ := egress.Enforced.Len(); n != 16001-i%2 {
				b.Fatal(n, "entries")
			}
		}
	})
}

// BenchmarkLookup looks connections up in the compiled policies of 3,000 rules.
func BenchmarkLookup(b *testing.B) {
	c := large(3000, 1000, 1, true)
	ingress, _ := c.resolver().Compile(1)
	for i := 0; b.Loop(); i++ {
		ingress.Enforced.Lookup(Peer{Identity: identity.ClusterMin + uint32(i%1000)}, policy.ProtocolTCP, uint16(1000+i%3000))
	}
}

// BenchmarkMemory reports the memory of a resolver and its results, for 100 endpoints.
func BenchmarkMemory(b *testing.B) {
	layouts(b, func(b *testing.B, all bool) {
		c := large(3000, 1000, 100, all)
		before := heap()
		for b.Loop() {
			r := c.resolver()
			c.compile(r)
			b.ReportMetric(float64(heap()-before)/1024, "KB")
			runtime.KeepAlive(r)
		}
	})
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
