package policymaps

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// oddPorts returns n ports that no two of them can share an entry.
func oddPorts(n int) (ports []k8s.PolicyPort) {
	for i := range n {
		ports = append(ports, k8s.PolicyPort{Protocol: "TCP", Port: fmt.Sprint(2*i + 1)})
	}
	return ports
}

// A policy with as many rules as entries is named without work for each pair of a rule and an entry. The names are found once, not with each attempt to write a
// policy that does not fit.
func TestName_ManyRules_NoWorkPerEntry(t *testing.T) {
	const entries = 5000
	w := newBench(t, 10, 0)
	p := &k8s.NetworkPolicy{Namespace: "ns-5", Name: "many", IsIngress: true}
	for _, port := range oddPorts(entries) {
		p.Ingress = append(p.Ingress, k8s.PolicyRule{Ports: []k8s.PolicyPort{port}})
	}
	put(t, w.DB, rw(w.KubernetesPolicies), p)
	w.step(t)
	var h *mapPolicy
	for _, one := range w.store.byID {
		h = one
	}
	require.Equal(t, []string{"NetworkPolicy ns-5/many"}, h.policies)

	fresh := &mapPolicy{id: h.id + 1, target: h.target, broken: true, change: h.target.Diff(nil)}
	require.Less(t, testing.AllocsPerRun(10, fresh.name), entries/10.0)
	require.Equal(t, h.policies, fresh.policies)
	w.store.capacity = w.store.used()
	w.store.apply(fresh)
	require.ErrorIs(t, fresh.err, errFull)
	marker := []string{"found before"}
	fresh.policies = marker
	w.store.apply(fresh)
	require.ErrorIs(t, fresh.err, errFull)
	require.Equal(t, marker, fresh.policies)
}
