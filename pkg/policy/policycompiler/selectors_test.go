package policycompiler

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/labels"
	"github.com/waggle-net/waggle/pkg/policy"
)

// While identities have classes, selectors choose the identities that a comparison with all identities finds, each of them either by a class or by its number,
// whether labels are listed or not.
func TestSelectors_RandomChangesOfClasses_EqualAComparisonWithAll(t *testing.T) {
	t.Parallel()
	byLabel, byClass := 0, 0
	for _, most := range []int{0, 3, mostListed} {
		for seed := range uint64(8) {
			random := rand.New(rand.NewPCG(seed, uint64(most)))
			r := New(policy.Options{Mode: policy.Default})
			r.StartClasses(nil, 0)
			r.SetClasses(true)
			c := r.selectors
			c.labelled.most = most
			var live []*selector
			for step := range 150 {
				number := 300 + random.Uint32N(30)
				switch random.IntN(6) {
				case 0, 1:
					c.upsert(number, randomPodLabels(random))
				case 2:
					c.remove(number)
				case 3:
					for _, one := range r.UnappliedClasses() {
						r.ClassesApplied(one)
					}
				default:
					if dead := max(0, len(live)-20); dead > 0 {
						c.release(live[:dead]...)
						live = live[dead:]
					}
					for range 1 + random.IntN(2*few) {
						s := c.ofLabels(randomChoice(random, "a", labels.KeyNamespace, labels.KeyNamespaceLabels+".team", labels.KeyCluster))
						numbers, listed := c.labelled.candidates(s.choice, len(c.identities))
						if listed && s.pending && s.extent != ofIdentity && len(numbers) > 0 && len(numbers)+len(c.byNumber) <= len(c.identities) {
							byLabel++
						}
						live = append(live, s)
					}
				}
				c.resolve()
				for _, s := range live {
					if len(s.classes) > 0 {
						byClass++
					}
					if got, want := chosenWithClasses(c, s), chosenBy(c, s.choice); s.pending || !slices.Equal(got, want) {
						t.Fatalf("seed %d, step %d, most %d: %s chooses %v, want %v", seed, step, most, s.choice, got, want)
					}
				}
			}
		}
	}
	require.Greater(t, byLabel, 50)
	require.Greater(t, byClass, 1000)
}

// chosenWithClasses lists the identities that a selector chooses by number or by class. One that it chooses by both is listed twice.
func chosenWithClasses(c *selectors, s *selector) []uint32 {
	numbers, classes := slices.Clone(s.identities), map[uint32]struct{}{}
	for _, number := range s.classes {
		classes[number] = struct{}{}
	}
	for number, k := range c.identities {
		if k.inOneOf(classes) {
			numbers = append(numbers, number)
		}
	}
	slices.Sort(numbers)
	return numbers
}

// randomPodLabels returns labels of a pod. Some have no namespace, or a namespace of another source, so that their identities have no classes.
func randomPodLabels(random *rand.Rand) map[string]string {
	all := map[string]string{"k8s:a": pick(random, "x", "y", "z"), "k8s:" + labels.KeyCluster: "x",
		"k8s:" + labels.KeyNamespaceLabels + ".team": pick(random, "x", "y")}
	if random.IntN(8) > 0 {
		all["k8s:"+labels.KeyNamespace] = pick(random, "x", "y", "z")
	}
	if random.IntN(8) == 0 {
		all["container:"+labels.KeyNamespace] = pick(random, "x", "y")
	}
	return all
}

// TestResolver_RepeatedPeers: a rule that repeats a peer has its selector once, and a removed policy leaves nothing behind.
func TestResolver_RepeatedPeers(t *testing.T) {
	t.Parallel()
	peers := app("web")
	peers.List = append(peers.List, policy.Peer{Identities: []uint32{web, db}})
	want, _ := one(policy.Options{Mode: policy.Default}, policyOf("p", ingress(false, peers, anyPorts()), ingress(true, app("db"), tcp80)))
	peers.List = slices.Repeat(peers.List, 1000)
	p := policyOf("p", ingress(false, peers, anyPorts()), ingress(true, app("db"), tcp80))
	r, _ := one(policy.Options{Mode: policy.Default}, p)
	wanted, _ := enforced(want)
	got, _ := enforced(r)
	require.Equal(t, entriesIn(wanted), entriesIn(got))
	chosen := 0
	for _, s := range r.selectors.byKey {
		chosen += s.rules
	}
	require.Equal(t, 3, chosen, "uses of selectors")

	r.DeletePolicy(p.Ref)
	enforced(r)
	c := r.selectors
	require.Empty(t, c.byKey)
	require.Empty(t, c.byAnchor)
	require.Empty(t, c.fixed)
	require.Empty(t, c.pending)
	for _, k := range c.identities {
		require.Empty(t, k.chosen)
	}
}
