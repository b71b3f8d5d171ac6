package k8snode

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
	"github.com/waggle-net/waggle/pkg/kubernetes/lastapplied"
)

const (
	v4Key = "network.cilium.io/ipv4-pod-cidr"
	v6Key = "network.cilium.io/ipv6-pod-cidr"
	host  = "network.cilium.io/ipv4-cilium-host"
	key   = "node.cilium.io/agent-not-ready"
)

func tainted(keys ...string) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "u"}}
	for _, k := range keys {
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: k, Effect: corev1.TaintEffectNoSchedule})
	}
	return node
}

// changeBeforePatch replaces the Node on the server between the agent's first read and its patch.
func changeBeforePatch(s *kubetest.Server, node *corev1.Node) {
	var done atomic.Bool
	s.Fault(func(r *http.Request) (int, string) {
		if r.Method == http.MethodPatch && done.CompareAndSwap(false, true) {
			s.Put(node)
		}
		return 0, ""
	})
}

// try runs a reconciliation round for one item.
func try(t *testing.T, c controller, write func(context.Context, *corev1.Node) error) error {
	t.Helper()
	live := &corev1.Node{}
	if err := c.Client.Get(t.Context(), kubeapi.Nodes, "", "one", live); err != nil {
		t.Fatal(err)
	}
	return write(t.Context(), live)
}

// TestRemoveTaints_KeepsConcurrentChanges changes the taints between the agent's read and its write.
func TestRemoveTaints_KeepsConcurrentChanges(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		before, meanwhile, after []string
		conflict                 bool
	}{
		"another added after ours":       {[]string{key}, []string{key, "new"}, []string{"new"}, false},
		"another added before ours":      {[]string{key}, []string{"new", key}, []string{"new"}, true},
		"another removed":                {[]string{"old", key}, []string{key}, []string{}, true},
		"ours removed":                   {[]string{key, "old"}, []string{"old"}, []string{"old"}, true},
		"ours removed and another added": {[]string{key}, []string{"new"}, []string{"new"}, true},
		"a third one of ours, in front":  {[]string{key, key}, []string{key, key, key}, []string{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := kubetest.New(t)
			s.Put(tainted(test.before...))
			changeBeforePatch(s, tainted(test.meanwhile...))
			c := controller{Client: s.Client(t), Settings: settings{taintKey: key}, Agent: agentconfig.Agent{NodeName: "one"}}
			if err := try(t, c, c.removeTaints); (err != nil) != test.conflict {
				t.Errorf("the first attempt: %v", err)
			}
			if err := try(t, c, c.removeTaints); err != nil {
				t.Errorf("the second attempt: %v", err)
			}
			node := &corev1.Node{}
			s.Get(kubeapi.Nodes, "", "one", node)
			got := []string{}
			for _, taint := range node.Spec.Taints {
				got = append(got, taint.Key)
			}
			if !slices.Equal(got, test.after) {
				t.Errorf("the Node has %v, want %v", got, test.after)
			}
		})
	}
}

// TestAnnotate_KeepsConcurrentChanges sets a CIDR annotation between the agent's read and its write.
func TestAnnotate_KeepsConcurrentChanges(t *testing.T) {
	t.Parallel()
	s := kubetest.New(t)
	s.Put(tainted())
	changed := tainted()
	changed.Annotations = map[string]string{v4Key: "10.77.0.0/24"}
	changeBeforePatch(s, changed)
	c := controller{Client: s.Client(t), Agent: agentconfig.Agent{NodeName: "one"}}
	write := func(ctx context.Context, live *corev1.Node) error {
		return c.annotate(ctx, live, map[string]string{v4Key: "10.1.0.0/24", host: "10.1.0.1"})
	}
	if err := try(t, c, write); err == nil {
		t.Error("the first attempt wrote over what came meanwhile")
	}
	if err := try(t, c, write); err != nil {
		t.Error(err)
	}
	node := &corev1.Node{}
	s.Get(kubeapi.Nodes, "", "one", node)
	if node.Annotations[v4Key] != "10.77.0.0/24" || node.Annotations[host] != "10.1.0.1" {
		t.Errorf("the Node has %v", node.Annotations)
	}
	if lastapplied.Of(node.Annotations).Ours(v4Key, "10.77.0.0/24") {
		t.Errorf("what a person wrote counts as ours: %v", node.Annotations)
	}
}

// TestPlan covers every combination of an annotation that is present or absent, owned or foreign, wanted or not.
func TestPlan(t *testing.T) {
	t.Parallel()
	const old, now = "10.1.0.0/24", "10.2.0.0/24"
	ours := func(k, v string) map[string]string {
		return map[string]string{k: v, lastapplied.Annotation: lastapplied.Values{k: v}.String()}
	}
	for name, test := range map[string]struct {
		have       map[string]string
		key, want  string
		value      string // after the patch; empty without one
		isOurs     bool
		foreign    bool
		unchanging bool
	}{
		"nothing there":                       {nil, v4Key, now, now, true, false, false},
		"nothing there, nothing wanted":       {nil, v4Key, "", "", false, false, true},
		"ours":                                {ours(v4Key, now), v4Key, now, now, true, false, true},
		"ours, of another range":              {ours(v4Key, old), v4Key, now, now, true, false, false},
		"ours, and not wanted":                {ours(v4Key, old), v4Key, "", "", false, false, false},
		"a person's CIDR, replaced":           {map[string]string{v4Key: now}, v4Key, now, now, false, false, true},
		"a person's CIDR, for the next start": {map[string]string{v4Key: old}, v4Key, now, old, false, true, true},
		"a person's CIDR over ours": {map[string]string{v4Key: old, lastapplied.Annotation: lastapplied.Values{v4Key: now}.String()},
			v4Key, now, old, false, true, false},
		"a foreign router":                     {map[string]string{host: "10.9.0.1"}, host, "10.1.0.1", "10.1.0.1", true, false, false},
		"a foreign router, none wanted":        {map[string]string{host: "10.9.0.1"}, host, "", "10.9.0.1", false, false, true},
		"an unreadable record":                 {map[string]string{v4Key: now, lastapplied.Annotation: "{"}, v4Key, now, now, false, false, false},
		"ours of the other family, not wanted": {ours(v6Key, "fd00::/64"), v4Key, now, now, true, false, false},
	} {
		have := map[string]string{}
		for k, v := range test.have {
			have[k] = v
		}
		changes, foreign := plan(have, map[string]string{test.key: test.want})
		if len(changes) == 0 != test.unchanging || len(foreign) > 0 != test.foreign {
			t.Errorf("%s: changes %v, foreign %v", name, changes, foreign)
		}
		for k, v := range changes {
			if v == nil {
				delete(have, k)
			} else {
				have[k] = *v
			}
		}
		if have[test.key] != test.value || lastapplied.Of(have).Ours(test.key, test.value) != test.isOurs {
			t.Errorf("%s: in the end %v", name, have)
		}
		if again, _ := plan(have, map[string]string{test.key: test.want}); len(again) > 0 {
			t.Errorf("%s: it is never as wanted: %v", name, again)
		}
	}
}

// FuzzPlan checks that one patch suffices, and that the agent neither loses a foreign pod CIDR nor claims it.
func FuzzPlan(f *testing.F) {
	f.Add("10.1.0.0/24", "10.1.0.0/24", "10.2.0.0/24", true)
	f.Add("x", "", "", false)
	f.Fuzz(func(t *testing.T, value, record, want string, there bool) {
		// Values decoded from JSON are UTF-8.
		value, record, want = strings.ToValidUTF8(value, "?"), strings.ToValidUTF8(record, "?"), strings.ToValidUTF8(want, "?")
		have := map[string]string{lastapplied.Annotation: lastapplied.Values{v4Key: record}.String()}
		if there {
			have[v4Key] = value
		}
		somebodys := there && value != record
		changes, _ := plan(have, map[string]string{v4Key: want})
		for k, v := range changes {
			if v == nil {
				delete(have, k)
			} else {
				have[k] = *v
			}
		}
		if somebodys && (have[v4Key] != value || lastapplied.Of(have).Ours(v4Key, value)) {
			t.Errorf("lost %q: %v", value, have)
		}
		if again, _ := plan(have, map[string]string{v4Key: want}); len(again) > 0 {
			t.Errorf("a second patch is needed: %v", again)
		}
	})
}

func TestNewSettings_RejectsInvalidTaintKey(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"", "a b", "x/y/z"} {
		if _, err := newSettings(Config{TaintKey: key}); err == nil {
			t.Errorf("%q is accepted", key)
		}
	}
	if _, err := newSettings(DefaultConfig); err != nil {
		t.Error(err)
	}
}

// Annotations are free text: every writer of the Node controls the text in the row.
func TestPlan_ForeignText_IsShortAndPrintable(t *testing.T) {
	t.Parallel()
	_, foreign := plan(map[string]string{v4Key: "\x1b[2J\n" + strings.Repeat("x", 200_000)}, map[string]string{v4Key: "10.1.0.0/24"})
	if len(foreign) != 1 || len(foreign[0]) > 200 || strings.ContainsAny(foreign[0], "\x1b\n") {
		t.Errorf("%d of %d bytes: %.300q", len(foreign), len(strings.Join(foreign, "")), foreign)
	}
}
