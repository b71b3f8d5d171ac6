package policycompiler

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/policy"
)

// In a cluster with twenty times as many identities, a new selector of an application is compared with as many identities as before.
func TestCandidates_NewSelector_DoNotGrowWithTheCluster(t *testing.T) {
	t.Parallel()
	for _, identities := range []int{1000, 20000} {
		r := large(0, identities, 0, false).resolver()
		r.settle()
		ofApp := policy.Selector{Requirements: []policy.Requirement{label("app", "app-3"), label("io.kubernetes.pod.namespace", "ns-7")}}
		numbers, listed := r.selectors.labelled.candidates(&ofApp, identities)
		require.True(t, listed)
		require.Len(t, numbers, appsPerNamespace, "the identities of the namespace, of %d", identities)

		s := r.selectors.ofLabels(&ofApp)
		r.selectors.resolveByLabel()
		require.False(t, s.pending, "it needs no pass over all identities")
		require.Len(t, s.identities, 1)
	}
}

// A label that many identities have is not listed, and its list returns when no identity has it any longer.
func TestLabelIndex_CommonLabel_IsNotListed(t *testing.T) {
	t.Parallel()
	x := newLabelIndex()
	x.most = 2
	backend := policy.Selector{Requirements: []policy.Requirement{label("tier", "backend")}}
	labels := map[string]string{"k8s:tier": "backend"}
	for number := range uint32(3) {
		x.add(number, labels)
		_, listed := x.candidates(&backend, 100)
		require.Equal(t, number < 2, listed, "%d identities", number+1)
	}
	for number := range uint32(3) {
		x.remove(number, labels)
	}
	require.Empty(t, x.with)
	x.add(9, labels)
	numbers, listed := x.candidates(&backend, 100)
	require.True(t, listed)
	require.Equal(t, []uint32{9}, numbers)
	_, listed = x.candidates(&backend, 0)
	require.False(t, listed, "more identities than the limit")
}

// Selectors choose the identities that a comparison with all identities finds, whether labels are listed or not.
func TestSelectors_RandomChanges_EqualAComparisonWithAll(t *testing.T) {
	t.Parallel()
	byLabel := 0
	for _, most := range []int{0, 1, 3, mostListed} {
		for seed := range uint64(8) {
			random := rand.New(rand.NewPCG(seed, uint64(most)))
			c := newSelectors()
			c.shrink, c.overdrawn = func() bool { return false }, func() bool { return false }
			c.labelled.most = most
			var live []*selector
			for step := range 150 {
				number := 300 + random.Uint32N(20)
				switch random.IntN(5) {
				case 0, 1:
					c.upsert(number, randomLabels(random))
				case 2:
					c.remove(number)
				case 3:
					for range 1 + random.IntN(2*few) {
						choice := randomChoice(random, "a", "b", "c")
						if _, listed := c.labelled.candidates(choice, len(c.identities)); listed {
							byLabel++
						}
						live = append(live, c.ofLabels(choice))
					}
				default:
					for len(live) > 30 {
						c.release(live[0])
						live = live[1:]
					}
				}
				c.resolve()
				for _, s := range live {
					if want := chosenBy(c, s.choice); s.pending || !slices.Equal(s.identities, want) {
						t.Fatalf("seed %d, step %d, most %d: %s chooses %v, want %v", seed, step, most, s.choice, s.identities, want)
					}
				}
			}
			for number := range maps.Clone(c.identities) {
				c.remove(number)
			}
			require.Empty(t, c.labelled.with, "no identity is left")
		}
	}
	require.Greater(t, byLabel, 300)
}

// chosenBy compares a choice with all identities.
func chosenBy(c *selectors, choice *policy.Selector) (numbers []uint32) {
	for number, k := range c.identities {
		if choice.Matches(k.labels) {
			numbers = append(numbers, number)
		}
	}
	slices.Sort(numbers)
	return numbers
}

func pick(random *rand.Rand, texts ...string) string { return texts[random.IntN(len(texts))] }

func randomLabels(random *rand.Rand) map[string]string {
	labels := map[string]string{}
	for range random.IntN(5) {
		labels[pick(random, "k8s", "container", "reserved")+":"+pick(random, "a", "b", "c")] = pick(random, "x", "y", "z")
	}
	return labels
}

func randomChoice(random *rand.Rand, keys ...string) *policy.Selector {
	choice := &policy.Selector{}
	for range random.IntN(3) {
		r := policy.Requirement{Source: pick(random, "k8s", "container", "reserved", policy.AnySource), Key: pick(random, keys...),
			Operator: policy.Operator(pick(random, string(policy.In), string(policy.In), string(policy.NotIn), string(policy.Exists), string(policy.DoesNotExist)))}
		if r.Operator == policy.In || r.Operator == policy.NotIn {
			for range random.IntN(4) {
				r.Values = append(r.Values, pick(random, "x", "y", "z"))
			}
		}
		choice.Requirements = append(choice.Requirements, r)
	}
	return choice
}
