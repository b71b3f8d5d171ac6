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

// A rule with named ports of peers counts only the peers that it selects, also by a class. Only rules about all peers, or about CIDRs, count all pods.
func TestPairs_NamedPortsOfPeers(t *testing.T) {
	t.Parallel()
	inNamespace := func(name string) policy.Peers {
		return policy.Peers{List: []policy.Peer{{Labels: &policy.Selector{Requirements: []policy.Requirement{label(labels.KeyNamespace, name)}}}}}
	}
	for name, c := range map[string]struct {
		rules   int
		peers   policy.Peers
		exceeds bool
	}{
		"narrow":          {60, app("web"), false},
		"small namespace": {20, inNamespace("small"), false},
		"large namespace": {3, inNamespace("large"), true},
		"any":             {3, policy.Peers{Any: true}, true},
		"CIDR":            {3, cidrPeers(policy.Outside, "10.0.0.0/8"), true},
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
				r.UpsertPod(fmt.Sprint(n), Pod{Identity: 5000 + n, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)})}})
			}
			_, out := enforced(r)
			require.Equal(t, c.exceeds, out.TooLarge())
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
