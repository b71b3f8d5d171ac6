package policycompiler

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/policy/policytest"
)

// An endpoint is compared with about as many policies as a namespace has, even in a cluster with ten times as many namespaces. Subjects are counted again only
// for the policies that select the endpoint. Two of the policies select an endpoint with these labels.
func TestUpsertSubject_ComparesPoliciesOfItsLabels(t *testing.T) {
	t.Parallel()
	const perNamespace = 30
	for _, namespaces := range []int{10, 100} {
		r := large(3*perNamespace*namespaces, namespaces*appsPerNamespace, 0, false).resolver()
		require.Len(t, r.policies, perNamespace*namespaces)
		require.Empty(t, r.SubjectsChanged(), "no endpoint")
		before, after := labelsOf(0), labelsOf(1)
		require.LessOrEqual(t, len(r.candidates(before)), 2*perNamespace, "%d namespaces", namespaces)

		r.UpsertSubject(Subject{ID: 1, Labels: before})
		first := r.SubjectsChanged()
		require.Len(t, first, 2)
		require.Empty(t, r.SubjectsChanged())

		r.UpsertSubject(Subject{ID: 1, Labels: after})
		both := r.SubjectsChanged()
		require.Len(t, both, 4, "the policies that selected it before, and those that select it after")
		require.Subset(t, both, first)
		for _, ref := range both {
			want := 1
			if slices.Contains(first, ref) {
				want = 0
			}
			require.Equal(t, want, r.SubjectsOf(ref))
		}
	}
}

// Every part that selects an endpoint is a candidate, in random worlds.
func TestCandidates_IncludeEverySelectingPart(t *testing.T) {
	t.Parallel()
	selected := 0
	for seed := range uint64(300) {
		w := policytest.New(seed, policytest.Small)
		s := stateOf(w)
		r := s.resolver()
		for id, subject := range s.subjects {
			r.UpsertSubject(Subject{ID: id})
			r.UpsertSubject(subject)
			var want []*part
			for _, p := range r.policies {
				for _, one := range p.parts {
					if one.Subject.Matches(subject.Labels) {
						want = append(want, one)
					}
				}
			}
			slices.SortFunc(want, func(a, b *part) int { return cmp.Compare(a.serial, b.serial) })
			selected += len(want)
			require.Equal(t, want, r.subjects[id].parts, "seed %d, endpoint %d", seed, id)
		}
	}
	require.Greater(t, selected, 300)
}

// An identity that no rule chooses touches nothing, also while rules name ports of peers.
func TestUpsertIdentity_UnselectedIdentity_ChangesNothing(t *testing.T) {
	t.Parallel()
	named := policy.Ports{List: []policy.Port{{Protocol: policy.ProtocolTCP, Name: "http"}}}
	r, s := one(policy.Options{Mode: policy.Default}, policyOf("p", egress(false, app("web"), named)))
	for id := range s.subjects {
		r.Compile(id)
	}
	r.NamedCIDRs()
	for i := range uint32(100) {
		r.UpsertIdentity(5000+i, map[string]string{"k8s:app": fmt.Sprint("other-", i)})
		require.False(t, r.NeedsCompile())
		require.False(t, r.podPrefixesStale)
		r.DeleteIdentity(5000 + i)
		require.False(t, r.NeedsCompile())
		require.False(t, r.podPrefixesStale)
	}
	r.UpsertIdentity(6000, map[string]string{"k8s:app": "web"})
	require.True(t, r.NeedsCompile())
	require.True(t, r.podPrefixesStale)
}
