package policy

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// addresses is an egress policy for the pods of a namespace with a label, of n addresses from 50.x.0.0 on.
func addresses(namespace, name, app string, x byte, n int) *k8s.NetworkPolicy {
	p := &k8s.NetworkPolicy{Namespace: namespace, Name: name, IsEgress: true, PodSelector: k8s.Selector{MatchLabels: map[string]string{"app": app}},
		Egress: []k8s.PolicyRule{{}}}
	for i := range n {
		p.Egress[0].Peers = append(p.Egress[0].Peers, k8s.Peer{IPBlock: netip.PrefixFrom(netip.AddrFrom4([4]byte{50, x, byte(i >> 8), byte(i)}), 32)})
	}
	return p
}

// internet allows the pods of a namespace one port of the internet, without an address.
func internet(namespace string, port int) *k8s.NetworkPolicy {
	return &k8s.NetworkPolicy{Namespace: namespace, Name: "internet", IsEgress: true, Egress: []k8s.PolicyRule{{
		Peers: []k8s.Peer{{IPBlock: netip.MustParsePrefix("0.0.0.0/0"), Except: []netip.Prefix{netip.MustParsePrefix("169.254.169.254/32")}}},
		Ports: []k8s.PolicyPort{{Protocol: "TCP", Port: fmt.Sprint(port)}}}}}
}

// cost is the number of entries of all policies, and of address ranges that are named.
func (w *bench) cost() (entries, ranges int) {
	for row := range w.Compiled.All(w.DB.ReadTxn()) {
		entries += row.Entries
	}
	return entries, w.Named.NumObjects(w.DB.ReadTxn())
}

// A tenant names 20,000 addresses in policies that select no endpoint of this node. Nothing of them is in a map, and rules of others that
// contain these addresses take as many entries as before. With a pod of the tenant they are named, and without it no longer.
func TestPolicies_WithoutALocalEndpoint_TakeNoEntries(t *testing.T) {
	t.Parallel()
	w := newBench(t, 10, 0)
	w.cidrs.room = 1 << 16
	rules := w.KubernetesPolicies.(statedb.RWTable[*k8s.NetworkPolicy])
	for i := range 4 {
		put(t, w.DB, rules, internet(fmt.Sprint("ns-", i), 443+i))
	}
	w.step(t)
	entries, ranges := w.cost()
	require.Equal(t, 4, entries)
	require.Equal(t, 2, ranges)

	for i := range 40 {
		put(t, w.DB, rules, addresses("ns-5", fmt.Sprint("nobody-", i), "nobody", byte(i), 500))
	}
	w.step(t)
	entries, ranges = w.cost()
	require.Equal(t, 4, entries)
	require.Equal(t, 2, ranges)

	put(t, w.DB, rules, addresses("ns-5", "nobody-0", "app-5", 0, 500)) // endpoint 6
	w.step(t)
	_, ranges = w.cost()
	require.Equal(t, 502, ranges)

	put(t, w.DB, rules, addresses("ns-5", "nobody-0", "nobody", 0, 500))
	w.step(t)
	entries, ranges = w.cost()
	require.Equal(t, 4, entries)
	require.Equal(t, 2, ranges)
}

// A rule that names ports of peers has all pods of the cluster followed, but only where an endpoint has the rule.
func TestPolicies_NamedPortsWithoutALocalEndpoint_FollowNoPeers(t *testing.T) {
	t.Parallel()
	w := newBench(t, 10, 0)
	rules := w.KubernetesPolicies.(statedb.RWTable[*k8s.NetworkPolicy])
	named := func(app string) *k8s.NetworkPolicy {
		p := addresses("ns-5", "named", app, 0, 0)
		p.Egress[0] = k8s.PolicyRule{Peers: []k8s.Peer{{Namespaces: &k8s.Selector{}}}, Ports: []k8s.PolicyPort{{Protocol: "TCP", Port: "web"}}}
		return p
	}
	put(t, w.DB, rules, named("nobody"))
	w.step(t)
	require.False(t, w.in.peers.told)
	put(t, w.DB, rules, named("app-5"))
	w.step(t)
	require.True(t, w.in.peers.told)
}
