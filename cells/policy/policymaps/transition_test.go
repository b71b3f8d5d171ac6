package policymaps

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/sources"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// question is about the first packet of a connection between two endpoints: whether both policies allow it, or whether one of the two policies does.
type question struct {
	from, to uint16
	part     part
}

type part string

const (
	whole   part = "connection"
	egress  part = "egress of its initiator"
	ingress part = "ingress of its responder"
)

// flowsOf has the answers of the kernel for all pairs of some endpoints.
type flowsOf map[question]bool

// cluster is the content of Kubernetes: pods, whose position determines the id of the endpoint, namespaces and policies.
type cluster struct {
	pods       []*k8s.Pod
	namespaces []*k8s.Namespace
	policies   []*k8s.NetworkPolicy
	denies     []*cilium.Policy // allow all peers except pods of namespaces with a label
}

const firstPod = 7

// randomCluster returns a cluster with few different labels, so that selectors often match.
func randomCluster(r *rand.Rand) (c cluster) {
	label := func(key string) map[string]string { return map[string]string{key: string("abc"[r.IntN(3)])} }
	for i := range 3 {
		c.namespaces = append(c.namespaces, &k8s.Namespace{Name: fmt.Sprint("n", i), Labels: label("team")})
	}
	for i := range 6 {
		labels := label("app")
		maps.Copy(labels, label("tier"))
		c.pods = append(c.pods, &k8s.Pod{Namespace: fmt.Sprint("n", i%3), Name: fmt.Sprint("p", i), UID: fmt.Sprint(i), Labels: labels})
	}
	selector := func(keys ...string) *k8s.Selector { return &k8s.Selector{MatchLabels: label(keys[r.IntN(len(keys))])} }
	peers := func() (rules []k8s.PolicyRule) {
		for range r.IntN(3) {
			peer := k8s.Peer{Pods: selector("app", "tier")}
			switch r.IntN(3) {
			case 0:
				peer.Namespaces = selector("team")
			case 1:
				peer = k8s.Peer{Namespaces: &k8s.Selector{}}
			}
			rule := k8s.PolicyRule{Peers: []k8s.Peer{peer}}
			if r.IntN(3) == 0 {
				rule.Ports = []k8s.PolicyPort{{Protocol: "TCP", Port: []string{"80", "81"}[r.IntN(2)]}}
			}
			rules = append(rules, rule)
		}
		return rules
	}
	for i := range r.IntN(7) {
		p := &k8s.NetworkPolicy{Namespace: fmt.Sprint("n", r.IntN(3)), Name: fmt.Sprint("policy", i), IsIngress: r.IntN(3) > 0}
		p.IsEgress = !p.IsIngress || r.IntN(3) == 0
		if r.IntN(3) > 0 {
			p.PodSelector = *selector("app", "tier")
		}
		if p.IsIngress {
			p.Ingress = peers()
		}
		if p.IsEgress {
			p.Egress = peers()
		}
		c.policies = append(c.policies, p)
	}
	return c
}

// randomDenies returns up to n policies that deny traffic from or to pods of namespaces with a label.
func randomDenies(r *rand.Rand, n int) (all []*cilium.Policy) {
	choice := func() string { return string("abc"[r.IntN(3)]) }
	for i := range r.IntN(n + 1) {
		direction, side := "ingress", "from"
		if r.IntN(2) == 0 {
			direction, side = "egress", "to"
		}
		all = append(all, &cilium.Policy{Namespace: fmt.Sprint("n", r.IntN(3)), Name: fmt.Sprint("deny", i), Spec: fmt.Appendf(nil,
			`{"endpointSelector": {"matchLabels": {"app": %q}}, "%[2]s": [{"%[3]sEntities": ["all"]}],
			"%[2]sDeny": [{"%[3]sEndpoints": [{"matchLabels": {"k8s:io.cilium.k8s.namespace.labels.team": %[4]q}}]}]}`,
			choice(), direction, side, choice())})
	}
	return all
}

// changed returns the cluster with some other pods, namespaces and policies.
func (c cluster) changed(r *rand.Rand) cluster {
	other := randomCluster(r)
	for i := range c.pods {
		if r.IntN(2) == 0 {
			other.pods[i] = c.pods[i]
		}
	}
	for i := range c.namespaces {
		if r.IntN(3) > 0 {
			other.namespaces[i] = c.namespaces[i]
		}
	}
	for i := range min(len(c.policies), len(other.policies)) {
		if r.IntN(2) == 0 {
			other.policies[i] = c.policies[i]
		}
	}
	return other
}

// flows returns the verdicts of the kernel for every pair of pods.
func (c cluster) flows(k *watchedKernel, parts ...part) flowsOf {
	all := flowsOf{}
	for from := range c.pods {
		for to := range c.pods {
			for _, p := range parts {
				if from != to {
					q := question{uint16(firstPod + from), uint16(firstPod + to), p}
					all[q] = k.allows(q)
				}
			}
		}
	}
	return all
}

// begins marks all sources as not read yet, and inserts the endpoints as the files of the previous run have them.
func (c cluster) begins(a *agent, before []*endpoints.Endpoint) {
	for _, table := range []string{"k8s-pods", "k8s-namespaces", "k8s-networkpolicies", "cilium-networkpolicies"} {
		insert(a.DB, a.Sources, sources.Source{Table: table, State: sources.Waiting})
	}
	insert(a.DB, a.Endpoints, before...)
}

// arrives fills the tables one after the other, in random order, and lets the agent react to each. When all tables are filled, the labels of endpoints follow
// their pods one by one.
func (c cluster) arrives(a *agent, r *rand.Rand) {
	read := func(table string, fill func()) func() {
		return func() {
			fill()
			insert(a.DB, a.Sources, sources.Source{Table: table, State: sources.Synced})
			synctest.Wait()
		}
	}
	steps := []func(){
		read("k8s-pods", func() { insert(a.DB, a.Pods, c.pods...) }),
		read("k8s-namespaces", func() { insert(a.DB, a.Namespaces, c.namespaces...) }),
		read("k8s-networkpolicies", func() { insert(a.DB, a.Policies, c.policies...) }),
		read("cilium-networkpolicies", func() { insert(a.DB, a.Denies, c.denies...) }),
	}
	r.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })
	for _, step := range steps {
		step()
	}
	for _, i := range r.Perm(len(c.pods)) {
		a.relabel(uint16(firstPod + i))
		synctest.Wait()
	}
	time.Sleep(30 * time.Second) // longer than every timeout
	synctest.Wait()
}

// rowsOf returns the endpoints of a run as its files have them.
func rowsOf(a *agent) (all []*endpoints.Endpoint) {
	for ep := range a.Endpoints.All(a.DB.ReadTxn()) {
		copied := ep.Clone()
		copied.Restored = true
		all = append(all, copied)
	}
	return all
}

// between calls change. After each single write, when a packet may arrive, the kernel must allow all connections that it allows both before and after the
// change, and deny all connections that it denies both times.
func (c cluster) between(t *testing.T, k *watchedKernel, seen *checkCounts, change func(), parts ...part) {
	t.Helper()
	was := c.flows(k, parts...)
	var moments []flowsOf
	var writes []string
	k.after = func(k *watchedKernel) {
		moments = append(moments, c.flows(k, parts...))
		k.mu.Lock()
		writes = append(writes, k.log[len(k.log)-1])
		k.mu.Unlock()
	}
	change()
	k.after = nil
	is := c.flows(k, parts...)
	for i, moment := range moments {
		for q, allowed := range moment {
			if was[q] == is[q] && allowed != is[q] {
				t.Fatalf("after write %d of %d %v is allowed: %v; before and after all: %v; the write: %s", i+1, len(moments), q, allowed, is[q], writes[i])
			}
		}
	}
	seen.writes += len(moments)
	for q := range is {
		switch {
		case was[q] && is[q]:
			seen.allowed++
		case !was[q] && !is[q]:
			seen.denied++
		default:
			seen.changed++
		}
	}
}

// checkCounts counts the checks of a test: writes, and connections by whether both states allow or deny them.
type checkCounts struct{ writes, allowed, denied, changed int }

func (s *checkCounts) enough(t *testing.T) {
	t.Helper()
	t.Logf("%d writes; both states allow %d connections and deny %d, and differ about %d", s.writes, s.allowed, s.denied, s.changed)
	if s.writes < 1000 || min(s.allowed, s.denied, s.changed) < 500 {
		t.Error("the states are not good enough")
	}
}

// rounds runs a test with many random clusters. start runs an agent in a cluster until stop is called, with the endpoints of the previous run.
func rounds(t *testing.T, run func(t *testing.T, r *rand.Rand, state cluster, k *watchedKernel, start func(cluster) (a *agent, stop func()))) {
	t.Helper()
	random := testseed.New(t)
	for range 60 {
		seed := [2]uint64{random.Uint64(), random.Uint64()}
		synctest.Test(t, func(t *testing.T) {
			r, dir, k := rand.New(rand.NewPCG(seed[0], seed[1])), t.TempDir(), newWatchedKernel()
			state := randomCluster(r)
			var before []*endpoints.Endpoint // as files have them
			for i, p := range state.pods {
				before = append(before, &endpoints.Endpoint{ID: uint16(firstPod + i), ContainerID: fmt.Sprint(i), IfName: "eth0", HostIfIndex: firstPod + i,
					K8sNamespace: p.Namespace, K8sPodName: p.Name, K8sUID: p.UID})
			}
			run(t, r, state, k, func(c cluster) (*agent, func()) {
				a, stop := startAgent(t, k, nil, dir, func(a *agent) { c.begins(a, before) })
				c.arrives(a, r)
				return a, func() { before = rowsOf(a); stop() }
			})
		})
	}
}

// TestTransition_ChangesWhileAgentIsDown: pods, namespaces and policies change while no agent runs. The next run changes the kernel to the new state
// without an intermediate state that [cluster.between] rejects, independent of the time between two writes. The cell endpoint-maps has a test that the slots
// of all endpoints are one write.
func TestTransition_ChangesWhileAgentIsDown(t *testing.T) {
	t.Parallel()
	var s checkCounts
	rounds(t, func(t *testing.T, r *rand.Rand, state cluster, k *watchedKernel, start func(cluster) (*agent, func())) {
		_, stop := start(state)
		for range 3 {
			stop()
			state = state.changed(r)
			state.between(t, k, &s, func() { _, stop = start(state) }, whole)
		}
	})
	s.enough(t)
}

// TestTransition_ChangedPolicies: policies are replaced in one commit while the agent runs. No policy of an endpoint has an intermediate state. The policies
// of two endpoints do not change at the same moment, because their objects in Kubernetes do not either.
func TestTransition_ChangedPolicies(t *testing.T) {
	t.Parallel()
	var s checkCounts
	rounds(t, func(t *testing.T, r *rand.Rand, state cluster, k *watchedKernel, start func(cluster) (*agent, func())) {
		state.denies = randomDenies(r, 2)
		a, _ := start(state)
		for range 5 {
			next := state.changed(r)
			next.denies = randomDenies(r, 2)
			state.between(t, k, &s, func() {
				txn := a.DB.WriteTxn(a.Policies, a.Denies)
				_, _ = a.Policies.DeleteAll(txn), a.Denies.DeleteAll(txn)
				for _, p := range next.policies {
					_, _, _ = a.Policies.Insert(txn, p)
				}
				for _, p := range next.denies {
					_, _, _ = a.Denies.Insert(txn, p)
				}
				txn.Commit()
				time.Sleep(30 * time.Second)
				synctest.Wait()
			}, egress, ingress)
			state.policies, state.denies = next.policies, next.denies
		}
	})
	s.enough(t)
}

// TestTransition_ChangedNamespaces: namespaces get other labels, by which policies allow and deny their pods, and then the pods get other identities, one by
// one. No policy of an endpoint has an intermediate state.
func TestTransition_ChangedNamespaces(t *testing.T) {
	t.Parallel()
	var s checkCounts
	rounds(t, func(t *testing.T, r *rand.Rand, state cluster, k *watchedKernel, start func(cluster) (*agent, func())) {
		state.denies = randomDenies(r, 12)
		a, _ := start(state)
		for range 5 {
			next := state.changed(r)
			state.between(t, k, &s, func() {
				for i, namespace := range next.namespaces {
					if namespace != state.namespaces[i] {
						insert(a.DB, a.Namespaces, namespace)
					}
				}
				for _, i := range r.Perm(len(state.pods)) {
					a.relabel(uint16(firstPod + i))
					synctest.Wait()
				}
				time.Sleep(30 * time.Second)
				synctest.Wait()
			}, egress, ingress)
			state.namespaces = next.namespaces
		}
	})
	s.enough(t)
}
