package policycompiler

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/labels"
	"github.com/waggle-net/waggle/pkg/policy"
)

// namedPorts returns n ports with names.
func namedPorts(n int) (ports policy.Ports) {
	for i := range n {
		ports.List = append(ports.List, policy.Port{Protocol: policy.ProtocolTCP, Name: fmt.Sprint("port-", i)})
	}
	return ports
}

// A rule with named ports of peers counts only the peers that it selects, also by a class. Rules about all peers, or about CIDRs, count all pods that serve a port
// with the name, and few others.
func TestPairs_NamedPortsOfPeers(t *testing.T) {
	t.Parallel()
	inNamespace := func(name string) policy.Peers {
		return policy.Peers{List: []policy.Peer{{Labels: &policy.Selector{Requirements: []policy.Requirement{label(labels.KeyNamespace, name)}}}}}
	}
	for name, c := range map[string]struct {
		rules   int
		peers   policy.Peers
		serve   uint32 // number of pods that serve the port
		exceeds bool
	}{
		"narrow":                {60, app("web"), 400, false},
		"small namespace":       {20, inNamespace("small"), 400, false},
		"large namespace":       {3, inNamespace("large"), 400, true},
		"any":                   {3, policy.Peers{Any: true}, 400, true},
		"any, served by few":    {20, policy.Peers{Any: true}, 10, false},
		"any, more than visits": {50, policy.Peers{Any: true}, 0, true},
		"CIDR":                  {3, cidrPeers(policy.Everyone, "10.0.0.0/8"), 400, true},
		"CIDR, served by few":   {20, cidrPeers(policy.Everyone, "10.0.0.0/8"), 10, false},
		"large, served by few":  {15, inNamespace("large"), 10, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, _ := one(policy.Options{Mode: policy.Default}, several(c.rules, func(int) policy.Rule { return egress(false, c.peers, namedPorts(1)) })...)
			r.limits.pairs = 1000
			r.StartClasses(nil, 0)
			r.SetClasses(true)
			for n := range uint32(400) {
				namespace := map[bool]string{true: "small", false: "large"}[n == 0]
				r.UpsertIdentity(5000+n, map[string]string{"k8s:app": fmt.Sprint("foreign-", n), "k8s:" + labels.KeyNamespace: namespace})
				pod := Pod{Identity: 5000 + n, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)})}}
				if n < c.serve {
					pod.Ports = []policy.NamedPort{{Name: "port-0", Protocol: policy.ProtocolTCP, Number: 80}}
				}
				r.UpsertPod(fmt.Sprint(n), pod)
			}
			_, out := enforced(r)
			require.Equal(t, c.exceeds, out.TooLarge())
			for n := range uint32(400) {
				r.UpsertPod(fmt.Sprint(n))
			}
			require.Empty(t, r.serving)
		})
	}
}

// A named port of an ingress rule has one number at the endpoint and counts once.
func TestPairs_NamedPortsOfSubject(t *testing.T) {
	t.Parallel()
	for limit, exceeds := range map[int]bool{99: true, 100: false} {
		r, _ := one(policy.Options{Mode: policy.Default}, several(10, func(int) policy.Rule { return ingress(false, app("web"), namedPorts(10)) })...)
		subject := Subject{ID: 1, Labels: map[string]string{"k8s:app": "subject"}}
		for i := range 10 {
			subject.Ports = append(subject.Ports, policy.NamedPort{Name: fmt.Sprint("port-", i), Protocol: policy.ProtocolTCP, Number: uint16(1000 + i)})
		}
		r.UpsertSubject(subject)
		r.limits.pairs = limit
		in, _ := enforced(r)
		require.Equal(t, exceeds, in.TooLarge(), "limit %d", limit)
	}
}
