package policystatus

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/pkg/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubeapi/kubetest"
	"github.com/waggle-net/waggle/pkg/policy"
)

const toDB = `{"endpointSelector": {}, "egress": [{"toServices": [{"k8sService": {"serviceName": "db"}}]}]}`

func service(name string, selector map[string]string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: name}, Spec: corev1.ServiceSpec{Selector: selector,
		Ports: []corev1.ServicePort{{Port: 80}}}}
}

// is reports whether a policy carries a condition.
func is(s *kubetest.Server, name, reason, says string) func() bool {
	return func() bool {
		c, _ := condition(s, name)
		return c.Reason == reason && strings.Contains(c.Message, says)
	}
}

// A policy that refers to a Service is Valid while the Service exists and selects pods. Its object is not listed again for that, and nothing is written about
// another policy.
func TestStatus_FollowsServices(t *testing.T) {
	t.Parallel()
	s := kubetest.New(t)
	s.Put(ciliumPolicy("p", toDB), ciliumPolicy("other", plain))
	start(t, s)
	s.Await(t, "the other policy's condition", is(s, "other", reasonEnforceable, ""))
	s.Await(t, "there is no Service", is(s, "p", policy.ReasonAbsent, `no Service "x/db"`))
	s.Put(service("web", map[string]string{"app": "web"}), service("db", map[string]string{"app": "db"}))
	s.Await(t, "there is one", is(s, "p", reasonEnforceable, ""))
	s.Put(service("db", map[string]string{"pod-template-hash": "x"}))
	s.Await(t, "it selects pods by a label that identities lack", is(s, "p", policy.ReasonLabel, "pod-template-hash"))
	s.Put(service("db", nil))
	s.Await(t, "it has no selector", is(s, "p", policy.ReasonUnsupported, "has no selector"))
	if !s.Remove(kubeapi.Services, "x", "db") {
		t.Fatal("the Service is not there")
	}
	s.Await(t, "it is deleted", is(s, "p", policy.ReasonAbsent, ""))
	s.Put(ciliumPolicy("p", plain))
	s.Await(t, "the policy refers to none", is(s, "p", reasonEnforceable, ""))
	if n := count(s, "list", "ciliumnetworkpolicies.cilium.io"); n != 1 {
		t.Errorf("policies were listed %d times", n)
	}
	if n := count(s, "patch", patched); n != 7 {
		t.Errorf("%d conditions were written, want 6 of p and 1 of the other policy", n)
	}
	s.Put(service("db", nil))
	s.Put(ciliumPolicy("later", toDB))
	s.Await(t, "a later policy", is(s, "later", policy.ReasonUnsupported, ""))
	if !is(s, "p", reasonEnforceable, "")() {
		t.Error("a policy that refers to no Service any more follows one")
	}
}

// awaitDone waits until a replica has written all of its statements.
func (r *replica) awaitDone() {
	for done := false; !done; {
		txn := r.db.ReadTxn()
		rows, changed := (statedb.AnyTable{Meta: r.db.GetTable(txn, "policy-statements")}).AllWatch(txn)
		done = true
		for row := range rows {
			done = done && row.(*statement).Status.Kind == reconciler.StatusKindDone
		}
		if !done {
			<-changed
		}
	}
}

// A new leader that finds the condition writes nothing.
func TestStatus_RestartWithServicesIsQuiet(t *testing.T) {
	t.Parallel()
	s := kubetest.New(t)
	s.Put(service("db", map[string]string{"app": "db"}), ciliumPolicy("p", toDB))
	r := start(t, s)
	s.Await(t, "the condition", is(s, "p", reasonEnforceable, ""))
	r.awaitDone()
	r.lead(t, false)
	next := start(t, s)
	s.Put(ciliumPolicy("later", toDB))
	s.Await(t, "the later policy's condition", is(s, "later", reasonEnforceable, ""))
	next.awaitDone()
	if n := count(s, "patch", patched); n != 2 {
		t.Errorf("%d conditions were written for two policies", n)
	}
	reads := 0
	for _, q := range s.Requests() {
		if q.Verb == "get" && q.Name == "p" {
			reads++
		}
	}
	if reads != 1 {
		t.Errorf("the object of p was read %d times, want once by the first leader", reads)
	}
}

// Services that this replica may not list are not known: nothing is said of policies that refer to some, and other policies do not wait.
func TestStatus_ServicesThatAreNotKnown(t *testing.T) {
	t.Parallel()
	s := kubetest.New(t)
	var forbidden atomic.Bool
	s.Fault(func(r *http.Request) (int, string) {
		if forbidden.Load() && strings.Contains(r.URL.Path, "/services") {
			return http.StatusForbidden, ""
		}
		return 0, ""
	})
	forbidden.Store(true)
	s.Put(ciliumPolicy("p", toDB), ciliumPolicy("other", plain))
	start(t, s)
	s.Await(t, "a policy without Services is judged", is(s, "other", reasonEnforceable, ""))
	if !is(s, "p", "", "")() {
		t.Error("a policy with Services is judged")
	}
	forbidden.Store(false)
	s.Await(t, "Services are known", is(s, "p", policy.ReasonAbsent, ""))
}
