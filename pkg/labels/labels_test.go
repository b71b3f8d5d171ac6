package labels

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

func TestDefault_KeepsSelectorLabels(t *testing.T) {
	t.Parallel()
	filter, err := NewFilter(nil, nil)
	require.NoError(t, err)
	for label, keep := range map[string]bool{
		"k8s:app":                                true,
		"k8s:io.kubernetes.pod.namespace":        true,
		"k8s:io.kubernetes.pod.name":             false,
		"k8s:io.cilium.k8s.namespace.labels.a/b": true,
		"k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name": true,
		"k8s:io.cilium.k8s.policy.serviceaccount":                        true,
		"k8s:io.cilium.k8s.policy.cluster":                               true,
		"k8s:app.kubernetes.io/name":                                     true,
		"k8s:kubernetes.io/os":                                           false,
		"k8s:statefulset.kubernetes.io/pod-name":                         false,
		"k8s:apps.kubernetes.io/pod-index":                               false,
		"k8s:batch.kubernetes.io/job-name":                               true,
		"k8s:batch.kubernetes.io/controller-uid":                         false,
		"k8s:batch.kubernetes.io/job-completion-index":                   false,
		"k8s:failure-domain.beta.kubernetes.io/zone":                     false,
		"k8s:k8s.io/cluster":                                             false,
		"k8s:my.k8s.io/x":                                                true, // rules match only at the start of a key
		"k8s:xkubernetes.io":                                             true,
		"k8s:kubernetesXio":                                              true, // a dot matches only a dot
		"k8s:pod-template-hash":                                          false,
		"k8s:pod-template-generation":                                    false,
		"k8s:controller-revision-hash":                                   false,
		"k8s:controller-uid":                                             false,
		"k8s:annotation.x":                                               false,
		"k8s:etcd_node":                                                  false,
		"container:app":                                                  true,
		"reserved:init":                                                  true,
	} {
		require.Equal(t, keep, filter.Keeps(label), label)
	}
}

func TestNewFilter_RulesOfTheUser(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		prefixes         []string
		file             []Prefix
		kept, notKept    string
		alsoKept, orNone string
	}{
		"an inclusive rule is a whitelist": {prefixes: []string{"k8s:team"}, kept: "k8s:team", notKept: "k8s:app",
			alsoKept: "k8s:io.kubernetes.pod.namespace", orNone: "container:team"},
		"an exclusive rule is none": {prefixes: []string{"!team"}, kept: "k8s:app", notKept: "k8s:team", alsoKept: "container:app"},
		"of one source":             {prefixes: []string{"k8s:!team"}, kept: "container:team", notKept: "k8s:team"},
		"the longer match wins":     {prefixes: []string{"!team", `team\.name`}, kept: "k8s:team.name", notKept: "k8s:team.size"},
		"the shortest exclusion counts": {prefixes: []string{"!te", `!team\.name`, "team"},
			kept: "k8s:team.name", notKept: "k8s:tea"},
		"of equal length exclusion wins": {prefixes: []string{"!team", "team"}, kept: "reserved:host", notKept: "k8s:team"},
		"a file replaces the default rules": {file: []Prefix{{Prefix: "pod-template-hash"}}, kept: "k8s:pod-template-hash",
			notKept: "k8s:io.kubernetes.pod.namespace", alsoKept: "reserved:health"},
		"a file that only excludes":    {file: []Prefix{{Prefix: "x", Invert: true}}, kept: "k8s:kubernetes.io/os", notKept: "k8s:xy"},
		"an empty file keeps all":      {file: []Prefix{}, kept: "k8s:kubernetes.io/os"},
		"alternatives match at start":  {prefixes: []string{"!a|b"}, kept: "k8s:cb", notKept: "k8s:b"},
		"an empty match excludes none": {prefixes: []string{"!z*"}, kept: "k8s:app"},
	} {
		f, err := NewFilter(c.prefixes, c.file)
		require.NoError(t, err, name)
		for _, label := range []string{c.kept, c.alsoKept} {
			require.True(t, label == "" || f.Keeps(label), "%s: %s", name, label)
		}
		for _, label := range []string{c.notKept, c.orNone} {
			require.False(t, label != "" && f.Keeps(label), "%s: %s", name, label)
		}
	}
	for _, bad := range []string{"", "!", "k8s:", "k8s:!", "k8s:(", "[", ")("} {
		_, err := NewFilter([]string{bad}, nil)
		require.Error(t, err, bad)
	}
}

func TestOfPod_PodLabels_CannotForgeMetadata(t *testing.T) {
	t.Parallel()
	pod := &k8s.Pod{Namespace: "default", Name: "p", Labels: map[string]string{
		"app":                                   "web",
		"io.kubernetes.pod.namespace":           "kube-system",
		"io.cilium.k8s.policy.serviceaccount":   "admin", // the pod has no service account
		"io.cilium.k8s.policy.cluster":          "other",
		"io.cilium.k8s.namespace.labels.team":   "root", // the namespace has no such label
		"io.cilium.k8s.namespace.labelsX":       "x",
		"reserved:host":                         "",
		"with;semicolon":                        "x",
		"with=equals":                           "x",
		"io.cilium.k8s.policy.whatever-is-next": "x",
		"value":                                 "a;k8s:b=c",
	}}
	require.Equal(t, map[string]string{
		"k8s:app":                          "web",
		"k8s:reserved:host":                "", // a key of the source k8s, not the reserved label
		"k8s:io.kubernetes.pod.namespace":  "default",
		"k8s:io.cilium.k8s.policy.cluster": "c1",
	}, OfPod("c1", pod, nil))

	pod.ServiceAccount = "sa"
	got := OfPod("c1", pod, &k8s.Namespace{Name: "default", Labels: map[string]string{"team": "a", "io.kubernetes.pod.namespace": "x"}})
	require.Equal(t, "sa", got["k8s:io.cilium.k8s.policy.serviceaccount"])
	require.Equal(t, "a", got["k8s:io.cilium.k8s.namespace.labels.team"])
	require.Equal(t, "x", got["k8s:io.cilium.k8s.namespace.labels.io.kubernetes.pod.namespace"])
	require.Equal(t, "default", got["k8s:io.kubernetes.pod.namespace"])
}

// FuzzOfPod checks that labels of a pod do not change its namespace, cluster and service account labels.
func FuzzOfPod(f *testing.F) {
	for _, key := range []string{"app", KeyNamespace, KeyServiceAccount, KeyCluster, KeyNamespaceLabels + ".team", "reserved:host", "k8s:" + KeyNamespace} {
		f.Add(key, "x", "team", "y")
	}
	filter, err := NewFilter(nil, nil)
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, key, value, nsKey, nsValue string) {
		plain := &k8s.Pod{Namespace: "ns", Name: "p", ServiceAccount: "sa"}
		labelled := &k8s.Pod{Namespace: "ns", Name: "p", ServiceAccount: "sa", Labels: map[string]string{key: value}}
		namespace := &k8s.Namespace{Name: "ns", Labels: map[string]string{nsKey: nsValue}}
		want, got := OfPod("c", plain, namespace), OfPod("c", labelled, namespace)
		for k, v := range got {
			if _, had := want[k]; k == "k8s:"+key && !had {
				delete(got, k)
			}
			if !strings.HasPrefix(k, "k8s:") {
				t.Fatalf("label %q of another source", k)
			}
			if strings.ContainsAny(k, ";=") || strings.Contains(v, ";") {
				t.Fatalf("label %q=%q makes the keys of identities ambiguous", k, v)
			}
		}
		if !maps.Equal(want, got) {
			t.Fatalf("pod label %q=%q changed %v into %v", key, value, want, got)
		}
		relevant := filter.Relevant(want)
		for _, k := range []string{KeyNamespace, KeyServiceAccount, KeyCluster} {
			if relevant["k8s:"+k] != want["k8s:"+k] || want["k8s:"+k] == "" {
				t.Fatalf("identity without %s: %v", k, slices.Sorted(maps.Keys(relevant)))
			}
		}
	})
}
