package labels_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/labels"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// demand is one condition of a selector, independent of its syntax.
type demand struct {
	kind       string // "pod", "namespace-label", "namespace", "service-account", "cluster", or a source of labels that no pod has
	key, value string
}

// tenant is a pod with its namespace and service account; labels may hold malicious values.
type tenant struct {
	namespace, account       string
	labels, namespacesLabels map[string]string
}

// meets reports whether the condition holds. It uses no labels of identities.
func (d demand) meets(who tenant) bool {
	has := func(labels map[string]string) bool { value, found := labels[d.key]; return found && value == d.value }
	switch d.kind {
	case "pod":
		if name, ok := strings.CutPrefix(d.key, labels.KeyNamespaceLabels+"."); ok { // a key of this form selects a namespace label
			return demand{"namespace-label", name, d.value}.meets(who)
		}
		if kind := map[string]string{labels.KeyNamespace: "namespace", labels.KeyServiceAccount: "service-account",
			labels.KeyCluster: "cluster"}[d.key]; kind != "" {
			return demand{kind, "", d.value}.meets(who)
		}
		return has(who.labels) && !labels.Surrounding(d.key)
	case "namespace-label":
		return has(who.namespacesLabels)
	case "namespace":
		return d.value == who.namespace
	case "service-account":
		return d.value == who.account
	case "cluster":
		return d.value == "c"
	}
	return false
}

// selectors returns the condition in every syntax that policies allow. Each selector passes through the policy parser.
func (d demand) selectors(t *testing.T) (list []*policy.Selector) {
	t.Helper()
	policySpec := func(label string) string {
		text, err := json.Marshal(map[string]any{"endpointSelector": map[string]any{}, "ingress": []any{map[string]any{"fromEndpoints": []any{
			map[string]any{"matchLabels": map[string]string{label: d.value}}}}}})
		require.NoError(t, err)
		return string(text)
	}
	ciliums := func(label string) *policy.Selector {
		return peer(policy.FromCilium(&cilium.Policy{Name: "p", Spec: json.RawMessage(policySpec(label))}, policy.Environment{Cluster: "c"}))
	}
	ofKubernetes := func(p k8s.Peer) *policy.Selector {
		return peer(policy.FromKubernetes(&k8s.NetworkPolicy{Namespace: "victim", Name: "p", IsIngress: true,
			Ingress: []k8s.PolicyRule{{Peers: []k8s.Peer{p}}}}, policy.Environment{Cluster: "c"}))
	}
	chosen := &k8s.Selector{MatchLabels: map[string]string{d.key: d.value}}
	switch d.kind {
	case "pod":
		list = []*policy.Selector{ofKubernetes(k8s.Peer{Namespaces: &k8s.Selector{}, Pods: chosen}), ciliums("k8s:" + d.key)}
	case "namespace-label":
		list = []*policy.Selector{ofKubernetes(k8s.Peer{Namespaces: chosen}), ciliums("k8s:" + labels.KeyNamespaceLabels + "." + d.key)}
	case "namespace":
		list = []*policy.Selector{ciliums("k8s:" + labels.KeyNamespace), ciliums(labels.KeyNamespace)}
	case "service-account":
		list = []*policy.Selector{ciliums("k8s:" + labels.KeyServiceAccount), ciliums(labels.KeyServiceAccount)}
	case "cluster":
		list = []*policy.Selector{ciliums("k8s:" + labels.KeyCluster)}
	default:
		list = []*policy.Selector{ciliums(d.kind + ":" + d.key)}
	}
	return slices.DeleteFunc(list, func(s *policy.Selector) bool { return s == nil }) // a selector that does not parse selects no pod
}

func peer(p *policy.Policy) *policy.Selector {
	for _, part := range p.Parts {
		for _, rule := range part.Rules {
			for _, one := range rule.Peers.List {
				return one.Labels
			}
		}
	}
	return nil
}

// identityOf computes the labels of an identity from the objects, as the agent does.
func identityOf(t *testing.T, filter *labels.Filter, who tenant, users []string) map[string]string {
	t.Helper()
	got := labels.OfPod("c", &k8s.Pod{Namespace: who.namespace, Name: "p", ServiceAccount: who.account, Labels: who.labels},
		&k8s.Namespace{Name: who.namespace, Labels: who.namespacesLabels})
	given, _ := labels.Parse(users) // labels of an API call; rejected labels are absent
	for key, value := range given {
		if labels.SourceOf(key) != labels.SourceK8s {
			got[key] = value
		}
	}
	return filter.Relevant(got)
}

// check compares every selector with meets: no selector may select a pod that does not meet the condition.
func check(t *testing.T, filter *labels.Filter, d demand, who tenant, users []string) {
	t.Helper()
	have := identityOf(t, filter, who, users)
	for _, s := range d.selectors(t) {
		if s.Matches(have) && !d.meets(who) {
			t.Fatalf("%+v is met by %+v with %q: %s chooses %v", d, who, users, s, have)
		}
	}
	for label := range have {
		if source := labels.SourceOf(label); source == labels.SourceReserved || source == "cidr" {
			t.Fatalf("%+v with %q has the label %q", who, users, label)
		}
	}
}

// spellings are keys and values that a malicious tenant may use to imitate another pod.
var spellings = []string{"app", "team", labels.KeyNamespace, labels.KeyServiceAccount, labels.KeyCluster, labels.KeyNamespaceLabels,
	labels.KeyNamespaceLabels + ".team", labels.KeyNamespaceLabels + ".io.kubernetes.pod.namespace", "io.cilium.k8s.policy", "reserved:host",
	"reserved", "host", "reserved.host", "cidr:10.0.0.0/8", "10.0.0.0/8", "any:app", "k8s:app", "k8s:" + labels.KeyNamespace, "k8s", "",
	"app=x;k8s:team", "app;reserved:host", "kubernetes.io/metadata.name", "app.kubernetes.io/name", "io.cilium.k8s.namespace.labels.", "\x00"}

// TestImitation writes random labels into a pod, its namespace and API calls, and then changes them. No selector for another tenant may select the pod.
func TestImitation(t *testing.T) {
	t.Parallel()
	random := testseed.New(t)
	filter, err := labels.NewFilter(nil, nil)
	require.NoError(t, err)
	pick := func() string { return spellings[random.IntN(len(spellings))] }
	value := func() string { return []string{"", "x", "kube-system", "admin", "victim", "c", pick()}[random.IntN(7)] }
	set := func() map[string]string {
		m := map[string]string{}
		for range random.IntN(4) {
			m[pick()] = value()
		}
		return m
	}
	kinds := []string{"pod", "namespace-label", "namespace", "service-account", "cluster", "reserved", "cidr", "fqdn"}
	met := 0
	for range 3_000 {
		who := tenant{namespace: "tenant", account: "default", labels: set(), namespacesLabels: set()}
		d := demand{kind: kinds[random.IntN(len(kinds))], key: pick(), value: value()}
		var users []string
		for range random.IntN(3) {
			users = append(users, fmt.Sprintf("%s:%s=%s", []string{"user", "reserved", "cidr", "fqdn", "k8s"}[random.IntN(5)], pick(), value()))
		}
		check(t, filter, d, who, users)
		who.labels, who.namespacesLabels = set(), set() // an update takes the same path
		check(t, filter, d, who, users)
		if d.meets(who) {
			met++
		}
	}
	require.NotZero(t, met, "no demand was ever met: the test tries nothing")
}

// TestImitation_SelectorsSelectIntendedPods checks the converse, so that selectors that select no pod do not pass the test above.
func TestImitation_SelectorsSelectIntendedPods(t *testing.T) {
	t.Parallel()
	filter, err := labels.NewFilter(nil, nil)
	require.NoError(t, err)
	who := tenant{"tenant", "sa", map[string]string{"app": "web"}, map[string]string{"team": "a", labels.KeyNamespace: "x"}}
	for _, d := range []demand{{"pod", "app", "web"}, {"namespace-label", "team", "a"}, {"namespace-label", labels.KeyNamespace, "x"},
		{"namespace", "", "tenant"}, {"service-account", "", "sa"}, {"cluster", "", "c"}} {
		selectors := d.selectors(t)
		require.NotEmpty(t, selectors, "%+v", d)
		for _, s := range selectors {
			require.True(t, s.Matches(identityOf(t, filter, who, nil)), "%+v: %s", d, s)
		}
	}
}

func FuzzImitation(f *testing.F) {
	for i, s := range spellings {
		f.Add(s, "x", spellings[(i+3)%len(spellings)], "kube-system", "user:"+s, uint8(i), spellings[(i+1)%len(spellings)], "x")
	}
	filter, err := labels.NewFilter(nil, nil)
	require.NoError(f, err)
	kinds := []string{"pod", "namespace-label", "namespace", "service-account", "cluster", "reserved", "cidr"}
	f.Fuzz(func(t *testing.T, podKey, podValue, namespaceKey, namespaceValue, user string, kind uint8, key, value string) {
		who := tenant{"tenant", "default", map[string]string{podKey: podValue}, map[string]string{namespaceKey: namespaceValue}}
		check(t, filter, demand{kinds[int(kind)%len(kinds)], key, value}, who, []string{user})
	})
}
