package policystatus

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"

	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
	"github.com/waggle-net/waggle/pkg/labels"
	"github.com/waggle-net/waggle/pkg/leaderwork"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/tables/leadership"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestScripts(t *testing.T) {
	celltest.Run(t, "testdata/*.txtar", func(t testing.TB) []cell.Cell {
		s := kubetest.New(t)
		s.Put(ciliumPolicy("plain", plain), ciliumPolicy("seven", seven), kubernetesPolicy("simple", nil))
		return append(cells(s.Client(t)), cell.Provide(func() upstream.ScriptCmdsOut { return s.Commands(t) }))
	})
}

func TestStatus_FollowsThePolicy(t *testing.T) {
	t.Parallel()
	s := kubetest.New(t)
	s.Put(ciliumPolicy("p", plain))
	start(t, s)
	s.Await(t, "all of it can be enforced", func() bool { c, n := condition(s, "p"); return c.Status == valid && n == 2 })
	first, _ := condition(s, "p")

	began := time.Now()
	s.Put(ciliumPolicy("p", seven))
	s.Await(t, "some of it is not", func() bool { c, n := condition(s, "p"); return c.Status == invalid && n == 2 })
	s.Await(t, "an Event", func() bool { return len(s.List(kubeapi.Events)) == 1 })
	t.Logf("%s after the change", time.Since(began).Round(time.Millisecond))
	c, _ := condition(s, "p")
	if c.Reason != policy.ReasonUnsupported || !strings.Contains(c.Message, "spec.ingress[0]") || c.LastTransitionTime < first.LastTransitionTime {
		t.Errorf("the condition is %+v", c)
	}
	e := s.List(kubeapi.Events)[0].(*corev1.Event)
	var o ciliumv2.CiliumNetworkPolicy
	s.Get(kubeapi.CiliumNetworkPolicies, "x", "p", &o)
	if e.Type != corev1.EventTypeWarning || e.Reason != EventReason || e.Message != c.Message || e.InvolvedObject.UID != o.UID ||
		e.InvolvedObject.Kind != "CiliumNetworkPolicy" || e.Namespace != "x" {
		t.Errorf("the Event is %+v", e)
	}
}

// A NetworkPolicy may select a label that no identity has. Only an Event reports the problem, because a NetworkPolicy has no conditions.
func TestStatus_EventsOnKubernetesPolicies(t *testing.T) {
	t.Parallel()
	s := kubetest.New(t)
	s.Put(kubernetesPolicy("fine", map[string]string{"app": "x"}), kubernetesPolicy("bad", map[string]string{"pod-template-hash": "x"}))
	start(t, s)
	s.Await(t, "an Event", func() bool { return len(s.List(kubeapi.Events)) == 1 })
	e := s.List(kubeapi.Events)[0].(*corev1.Event)
	if e.InvolvedObject.Name != "bad" || e.InvolvedObject.Kind != "NetworkPolicy" || e.InvolvedObject.APIVersion != "networking.k8s.io/v1" ||
		!strings.Contains(e.Message, "pod-template-hash") {
		t.Errorf("the Event is %+v", e)
	}
}

// A condition that another program overwrites is not restored.
func TestStatus_OverwrittenCondition_NotRestored(t *testing.T) {
	t.Parallel()
	s := kubetest.New(t)
	s.Put(ciliumPolicy("p", plain))
	start(t, s)
	s.Await(t, "the condition", func() bool { c, _ := condition(s, "p"); return c.Reason == reasonEnforceable })
	p := ciliumPolicy("p", plain)
	p.Status.Conditions = []ciliumv2.PolicyCondition{{Type: ciliumv2.PolicyValid, Status: valid, Message: "another's words"}}
	s.Put(p)
	s.Put(ciliumPolicy("later", plain)) // its watch event follows the one of p
	s.Await(t, "the later policy's condition", func() bool { c, _ := condition(s, "later"); return c.Reason == reasonEnforceable })
	if c, _ := condition(s, "p"); c.Message != "another's words" || count(s, "patch", patched) != 2 {
		t.Errorf("the condition is %+v after %d patches", c, count(s, "patch", patched))
	}
}

// For hundreds of policies with up-to-date conditions a new leader sends list requests, and no request for each policy.
func TestStatus_Restart_NoRequestPerPolicy(t *testing.T) {
	t.Parallel()
	const policies = 300
	s := kubetest.New(t)
	for i := range policies {
		s.Put(ciliumPolicy(fmt.Sprintf("p%d", i), plain))
	}
	r := start(t, s)
	complete := func() bool {
		for _, o := range s.List(kubeapi.CiliumNetworkPolicies) {
			if len(o.(*ciliumv2.CiliumNetworkPolicy).Status.Conditions) != 2 {
				return false
			}
		}
		return true
	}
	s.Await(t, "all conditions", complete)
	before := len(s.Requests())
	r.lead(t, false)
	start(t, s)
	s.Put(ciliumPolicy("later", plain))
	s.Await(t, "the later policy's condition", func() bool { c, _ := condition(s, "later"); return c.Reason == reasonEnforceable })
	if n := len(s.Requests()) - before; n > 20 {
		t.Errorf("%d requests for a new leader and one new policy", n)
	}
	if n := count(s, "patch", patched); n != policies+1 {
		t.Errorf("%d patches for %d policies", n, policies+1)
	}
}

// Two leaders create one Event for the same message.
func TestStatus_OneEventForOneProblem(t *testing.T) {
	t.Parallel()
	s := kubetest.New(t)
	s.Put(ciliumPolicy("p", seven))
	r := start(t, s)
	s.Await(t, "an Event", func() bool { return count(s, "create", events) == 1 })
	r.lead(t, false)
	s.Put(ciliumPolicy("q", seven)) // while no replica leads
	start(t, s)
	s.Await(t, "Events about both", func() bool { return count(s, "create", events) >= 3 && len(s.List(kubeapi.Events)) == 2 })
}

// Failed requests are retried. After a conflict the write does not overwrite the change in between.
func TestStatus_TriesAgain(t *testing.T) {
	t.Parallel()
	s := kubetest.New(t)
	var rejected atomic.Int64
	s.Fault(func(r *http.Request) (int, string) {
		switch {
		case r.Method == http.MethodPatch && rejected.Add(1) == 1:
			p := ciliumPolicy("p", seven)
			p.Status.Conditions = append(p.Status.Conditions, ciliumv2.PolicyCondition{Type: "Third", Status: valid})
			s.Put(p) // the version that the cell has read is outdated now
		case r.Method == http.MethodPost && rejected.Add(1) < 4:
			return http.StatusInternalServerError, ""
		}
		return 0, ""
	})
	s.Put(ciliumPolicy("p", seven))
	start(t, s)
	s.Await(t, "the condition beside two others", func() bool { c, n := condition(s, "p"); return c.Status == invalid && n == 3 })
	s.Await(t, "an Event", func() bool { return len(s.List(kubeapi.Events)) == 1 })
}

// A replica that has lost the lease writes nothing, even if it lost the lease during an update.
func TestStatus_LeaderOnly(t *testing.T) {
	t.Parallel()
	s := kubetest.New(t)
	db := statedb.New()
	leader, err := leadership.NewTable(db)
	if err != nil {
		t.Fatal(err)
	}
	r := &replica{db: db, leader: leader}
	r.lead(t, true)
	w := &writer{params{DB: db, Leadership: leader, Client: s.Client(t)}}
	s.Put(ciliumPolicy("p", plain))
	var o ciliumv2.CiliumNetworkPolicy
	s.Get(kubeapi.CiliumNetworkPolicies, "x", "p", &o)
	one := &statement{Ref: policy.Ref{Kind: policy.Cilium, Namespace: "x", Name: "p"}, UID: string(o.UID), Valid: invalid}
	s.Fault(func(q *http.Request) (int, string) {
		if q.Method == http.MethodGet {
			r.lead(t, false) // between the read of the object and the write
		}
		return 0, ""
	})
	if err := w.Update(t.Context(), nil, 0, one); !errors.Is(err, leaderwork.ErrNotLeading) {
		t.Errorf("a condition: %v", err)
	}
	if err := w.emit(t.Context(), one); !errors.Is(err, leaderwork.ErrNotLeading) {
		t.Errorf("an Event: %v", err)
	}
	if n := count(s, "patch", patched) + count(s, "create", events); n != 0 {
		t.Errorf("%d writes without the lease", n)
	}
}

// A watch that ends is resumed; a list finds lost changes.
func TestStatus_SurvivesBrokenWatches(t *testing.T) {
	t.Parallel()
	s := kubetest.New(t)
	start(t, s)
	for i, breakIt := range []func(){func() { s.CutWatches(t) }, s.Compact, func() { s.Stop(); s.Start(t) }} {
		name := fmt.Sprintf("p%d", i)
		s.Await(t, "the watch", func() bool { return count(s, "watch", "ciliumnetworkpolicies.cilium.io") > i })
		breakIt()
		s.Put(ciliumPolicy(name, plain))
		s.Await(t, "the condition of "+name, func() bool { c, _ := condition(s, name); return c.Status == valid })
	}
}

// The API server validates the whole object when its status is written. An object that was stored before its schema rejected it gets an Event, and the write of
// its status is not retried.
func TestStatus_SchemaRejectsObject(t *testing.T) {
	t.Parallel()
	s := kubetest.New(t)
	s.Fault(func(r *http.Request) (int, string) {
		if r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/status") {
			return http.StatusUnprocessableEntity, ""
		}
		return 0, ""
	})
	s.Put(ciliumPolicy("p", seven))
	r := start(t, s)
	s.Await(t, "an Event", func() bool { return len(s.List(kubeapi.Events)) == 1 })
	for done := false; !done; {
		txn := r.db.ReadTxn()
		rows, changed := (statedb.AnyTable{Meta: r.db.GetTable(txn, "policy-statements")}).AllWatch(txn)
		for row := range rows {
			done = row.(*statement).Status.Kind == reconciler.StatusKindDone
		}
		if !done {
			<-changed
		}
	}
	if n := count(s, "patch", patched); n != 1 {
		t.Errorf("the status was written %d times", n)
	}
}

func TestMessageOf_IsBounded(t *testing.T) {
	t.Parallel()
	var many []policy.Problem
	for range 1000 {
		many = append(many, policy.Problem{Path: "spec", Reason: policy.ReasonUnsupported, Message: strings.Repeat("\x1b[2J", 1000)})
	}
	many[999].Reason, many[999].Invalid = policy.ReasonInvalid, true
	s := &statement{Ref: policy.Ref{Kind: policy.Clusterwide, Name: strings.Repeat("a-", 120)}}
	s.setFrom(&policy.Policy{Problems: many})
	e := s.event(time.Now())
	switch {
	case s.Reason != policy.ReasonInvalid || !strings.HasSuffix(s.Message, "and 990 more"):
		t.Errorf("%s: %.100q", s.Reason, s.Message)
	case strings.Contains(s.Message, "\x1b") || len(s.Message) > 20_000:
		t.Errorf("%d bytes: %.100q", len(s.Message), s.Message)
	case len(e.Name) > 253 || strings.Contains(e.Name, "-.") || len(e.Message) > 1024 || e.Namespace != "default":
		t.Errorf("the Event is %+v", e)
	}
}

// Agents do not enforce some rules if identities have no label with the name of the cluster. This role reports the same problem.
func TestEvaluate_ReportsProblemsOfAgents(t *testing.T) {
	f := follower{params: params{Keeps: func(label string) bool { return label != "k8s:"+labels.KeyCluster }}}
	s, err := evaluate(ciliumPolicy("p", `{"endpointSelector": {}, "ingress": [{"fromEntities": ["cluster"]}]}`), f.environment(nil), nil)
	if err != nil || s.Valid != invalid || s.Reason != policy.ReasonLabel {
		t.Errorf("%v: %+v", err, s)
	}
}
