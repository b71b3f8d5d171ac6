package policycompiler

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/policy"
)

// Without an endpoint that a policy selects, its prefixes are not named and its choices of peers are not resolved.
func TestResolver_PolicyWithoutASubject_NamesNothing(t *testing.T) {
	t.Parallel()
	p := policyOf("p", egress(false, cidrPeers(policy.Outside, "10.0.0.0/8", "10.1.0.0/16"), anyPorts()), egress(false, app("web"), policy.Ports{
		List: []policy.Port{{Protocol: policy.ProtocolTCP, Name: "http"}}}))
	p.Parts[0].Subject.Requirements = []policy.Requirement{label("app", "elsewhere")}
	r, s := one(policy.Options{Mode: policy.Default}, p)
	require.Empty(t, r.NamedCIDRs())
	require.False(t, r.NamesPortsOfPeers())
	require.Empty(t, r.selectors.byKey)

	r.UpsertSubject(Subject{ID: 2, Labels: map[string]string{"k8s:app": "elsewhere"}})
	require.Len(t, r.NamedCIDRs(), 2)
	require.True(t, r.NamesPortsOfPeers())
	require.Len(t, r.selectors.byKey, 1)

	r.UpsertSubject(Subject{ID: 2, Labels: s.subjects[1].Labels})
	require.Empty(t, r.NamedCIDRs())
	require.False(t, r.NamesPortsOfPeers())
	require.Empty(t, r.selectors.byKey)
}
