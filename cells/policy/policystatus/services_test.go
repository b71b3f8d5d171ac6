package policystatus

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

const toDB = `{"endpointSelector": {}, "egress": [{"toServices": [{"k8sService": {"serviceName": "db"}}]}]}`

func service(name string, selector map[string]string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: name}, Spec: corev1.ServiceSpec{Selector: selector,
		Ports: []corev1.ServicePort{{Port: 80}}}}
}

// externalName returns the Service "db" with the type ExternalName.
func externalName() *corev1.Service {
	s := service("db", nil)
	s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "db.example"
	return s
}

// is reports whether a policy has a condition.
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
	lists := count(s, "list", "ciliumnetworkpolicies.cilium.io")
	s.Put(service("web", map[string]string{"app": "web"}), service("db", map[string]string{"app": "db"}))
	s.Await(t, "there is one", is(s, "p", reasonEnforceable, ""))
	s.Put(service("db", map[string]string{"pod-template-hash": "x"}))
	s.Await(t, "it selects pods by a label that identities lack", is(s, "p", policy.ReasonLabel, "pod-template-hash"))
	s.Put(externalName())
	s.Await(t, "it is an ExternalName", is(s, "p", policy.ReasonUnsupported, "is an ExternalName"))
	if !s.Remove(kubeapi.Services, "x", "db") {
		t.Fatal("the Service is not there")
	}
	s.Await(t, "it is deleted", is(s, "p", policy.ReasonAbsent, ""))
	s.Put(ciliumPolicy("p", plain))
	s.Await(t, "the policy refers to none", is(s, "p", reasonEnforceable, ""))
	if n := count(s, "list", "ciliumnetworkpolicies.cilium.io"); n != lists {
		t.Errorf("policies were listed %d times because of Services", n-lists)
	}
	if n := count(s, "patch", patched); n != 7 {
		t.Errorf("%d conditions were written, want 6 of p and 1 of the other policy", n)
	}
	s.Put(externalName())
	s.Put(ciliumPolicy("later", toDB))
	s.Await(t, "a later policy", is(s, "later", policy.ReasonUnsupported, ""))
	if !is(s, "p", reasonEnforceable, "")() {
		t.Error("a policy that no longer refers to a Service depends on one")
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

// Services are not known to a leader without the right to list them. Policies that refer to Services have no statement, and other policies do not wait.
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
	s.Await(t, "a policy without Services is evaluated", is(s, "other", reasonEnforceable, ""))
	if !is(s, "p", "", "")() {
		t.Error("a policy with Services is evaluated")
	}
	forbidden.Store(false)
	s.Await(t, "Services are known", is(s, "p", policy.ReasonAbsent, ""))
}

// If a policy is changed before Services are known, its current version is evaluated, and follows the Services to which this version refers.
func TestStatus_EditBeforeTheFirstStatement(t *testing.T) {
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
	s.Put(service("cache", map[string]string{"app": "cache"}), ciliumPolicy("p", toDB), ciliumPolicy("other", plain))
	start(t, s)
	s.Await(t, "another policy is evaluated", is(s, "other", reasonEnforceable, ""))
	s.Put(ciliumPolicy("p", strings.Replace(toDB, "db", "cache", 1)), ciliumPolicy("later", plain))
	s.Await(t, "the change is read", is(s, "later", reasonEnforceable, ""))
	forbidden.Store(false)
	s.Await(t, "Services are known", is(s, "p", reasonEnforceable, ""))
	if !s.Remove(kubeapi.Services, "x", "cache") {
		t.Fatal("the Service is not there")
	}
	s.Await(t, "the Service is deleted", is(s, "p", policy.ReasonAbsent, `no Service "x/cache"`))
}

// evaluatorRun is a running serviceEvaluator with one policy, whose object it reads from spec.
type evaluatorRun struct {
	*serviceEvaluator
	follower *follower
	spec     atomic.Pointer[string]
	reads    atomic.Int64
}

// newEvaluatorRun starts a serviceEvaluator. The first reads of the object fail; failures is their number.
func newEvaluatorRun(t *testing.T, failures int) (j *evaluatorRun, stop func()) {
	t.Helper()
	db := statedb.New()
	table, err := newTable(db)
	services, errServices := newServiceTable(db)
	if err := errors.Join(err, errServices); err != nil {
		t.Fatal(err)
	}
	p := params{DB: db, Table: table, Services: services, Pause: betweenRestatements}
	j = &evaluatorRun{serviceEvaluator: newServiceEvaluator(p), follower: &follower{params: p, resource: kubeapi.CiliumNetworkPolicies}}
	j.read = func(context.Context, policy.Ref) (runtime.Object, error) {
		if j.reads.Add(1) <= int64(failures) {
			return nil, errors.New("the API server is busy")
		}
		return ciliumPolicy("p", *j.spec.Load()), nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	health, _ := cell.NewSimpleHealth()
	go func() { ended <- j.run(ctx, health) }()
	synctest.Wait()
	return j, func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// apply reads a version of the policy, as after an event of a watch.
func (j *evaluatorRun) apply(t *testing.T, spec string) {
	t.Helper()
	j.spec.Store(&spec)
	row, err := j.follower.read(ciliumPolicy("p", spec))
	if err != nil {
		t.Fatal(err)
	}
	if err := j.follower.apply(watch.Modified, row); err != nil {
		t.Fatal(err)
	}
}

// put writes the Service "db", without a selector as an ExternalName.
func (j *evaluatorRun) put(t *testing.T, selects string) {
	t.Helper()
	s := &k8s.Service{Namespace: "x", Name: "db", Type: "ClusterIP", Selects: selects}
	if selects == "" {
		s.Type = "ExternalName"
	}
	j.insert(t, s)
}

func (j *evaluatorRun) insert(t *testing.T, s *k8s.Service) {
	t.Helper()
	txn := j.DB.WriteTxn(j.Services)
	defer txn.Commit()
	if _, _, err := j.Services.Insert(txn, s); err != nil {
		t.Fatal(err)
	}
}

// check waits, and compares the reason of the statement and the number of reads of the object.
func (j *evaluatorRun) check(t *testing.T, after time.Duration, situation, reason string, reads int) {
	t.Helper()
	time.Sleep(after)
	synctest.Wait()
	row, _, found := j.Table.Get(j.DB.ReadTxn(), refIndex.Query("CiliumNetworkPolicy x/p"))
	if !found {
		t.Fatal(situation + ": there is no statement")
	}
	if n := j.reads.Load(); row.Reason != reason || n != int64(reads) {
		t.Errorf("%s: %q after %d reads, want %q after %d", situation, row.Reason, n, reason, reads)
	}
}

// Changes of Services alone make at most one statement about a policy in 30 s. The first of them, a new policy and a changed one are evaluated at once.
func TestServiceJudge_PausesBetweenStatements(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		j, stop := newEvaluatorRun(t, 0)
		defer stop()
		j.apply(t, toDB)
		j.check(t, 0, "a new policy", policy.ReasonAbsent, 0)
		j.put(t, "app=db")
		j.check(t, time.Second, "the first change of its Service", reasonEnforceable, 1)
		for i := range 100 {
			j.put(t, []string{"", "app=db"}[i%2])
			j.apply(t, toDB) // the event of the last write of the condition
			j.check(t, 100*time.Millisecond, "a Service that changes all the time", reasonEnforceable, 1)
		}
		j.put(t, "")
		j.check(t, 15*time.Second, "within the pause", reasonEnforceable, 1)
		j.check(t, 10*time.Second, "after the pause", policy.ReasonUnsupported, 2)
		j.put(t, "app=db")
		j.check(t, time.Second, "a change", policy.ReasonUnsupported, 2)
		j.put(t, "")
		j.check(t, time.Hour, "it was reverted", policy.ReasonUnsupported, 2)
		j.put(t, "app=db")
		j.check(t, time.Second, "a change after a long time", reasonEnforceable, 3)
		j.put(t, "")
		j.check(t, time.Second, "a second one", reasonEnforceable, 3)
		j.apply(t, strings.Replace(toDB, "{", `{"description": "changed", `, 1))
		j.check(t, 0, "a changed policy", policy.ReasonUnsupported, 3)
	})
}

// A policy that chooses Services by their labels is evaluated when a Service of the namespace is created or relabelled, at most once in 30 s. This role knows no
// addresses, so a Service without a selector is no problem.
func TestServiceJudge_FollowsLabels(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		j, stop := newEvaluatorRun(t, 0)
		defer stop()
		labelled := func(namespace, name, labels string) *k8s.Service {
			return &k8s.Service{Namespace: namespace, Name: name, Type: "ClusterIP", Labelled: labels}
		}
		j.apply(t, `{"endpointSelector": {}, "egress": [{"toServices": [{"k8sServiceSelector": {"selector": {"matchLabels": {"plan": "gold"}}}}]}]}`)
		j.check(t, 0, "a new policy", policy.ReasonAbsent, 0)
		j.insert(t, labelled("x", "db", "plan=gold"))
		j.check(t, time.Second, "a Service has the label", reasonEnforceable, 1)
		j.insert(t, labelled("y", "db", "plan=gold"))
		j.check(t, time.Minute, "a Service of another namespace", reasonEnforceable, 1)
		j.insert(t, labelled("x", "db", "plan=basic"))
		j.check(t, time.Second, "the label is gone", policy.ReasonAbsent, 2)
		j.insert(t, labelled("x", "late", "plan=gold"))
		j.check(t, time.Second, "within the pause", policy.ReasonAbsent, 2)
		j.check(t, 30*time.Second, "after the pause", reasonEnforceable, 3)
		j.insert(t, &k8s.Service{Namespace: "x", Name: "late", Type: "ExternalName", Labelled: "plan=gold"})
		j.check(t, time.Minute, "the chosen Service is an ExternalName", policy.ReasonUnsupported, 4)
	})
}

// A policy whose object cannot be read stays queued.
func TestServiceJudge_FailedRead_IsRetried(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		j, stop := newEvaluatorRun(t, 2)
		defer stop()
		j.apply(t, toDB)
		j.check(t, 0, "a new policy", policy.ReasonAbsent, 0)
		j.put(t, "app=db")
		j.check(t, time.Minute, "it is read at the third attempt", reasonEnforceable, 3)
	})
}

// A statement replaces one whose write may still overwrite the condition, so it is written even if the object has its condition.
func TestStatement_InheritsTheStatus(t *testing.T) {
	t.Parallel()
	done, pending, failed := reconciler.StatusDone(), reconciler.StatusPending(), reconciler.StatusError(errors.New("the API server is busy"))
	for _, c := range []struct {
		old, of reconciler.Status
		equal   bool
		want    reconciler.StatusKind
	}{
		{done, pending, true, reconciler.StatusKindDone},
		{pending, done, true, reconciler.StatusKindPending},
		{failed, done, true, reconciler.StatusKindPending},
		{failed, pending, true, reconciler.StatusKindPending},
		{done, done, false, reconciler.StatusKindDone},
		{done, pending, false, reconciler.StatusKindPending},
		{pending, done, false, reconciler.StatusKindPending},
		{failed, done, false, reconciler.StatusKindPending},
	} {
		old, row := &statement{Valid: valid, Status: c.old}, &statement{Valid: valid, Status: c.of}
		if !c.equal {
			old.Valid = invalid
		}
		if row.inheritStatus(old); row.Status.Kind != c.want {
			t.Errorf("%s after %s, equal %t: %s, want %s", c.of.Kind, c.old.Kind, c.equal, row.Status.Kind, c.want)
		}
	}
}

// A selector with more labels than policies support is not kept.
func TestReadService_LongSelector(t *testing.T) {
	t.Parallel()
	selector := map[string]string{}
	for i := range 1000 {
		selector[fmt.Sprint("key-", i)] = "x"
	}
	row, err := readService(service("db", selector))
	if err != nil || row.Type == "" || row.Selects == "" || len(row.Selects) > 20 {
		t.Errorf("%v, %.100q", err, row.Selects)
	}
}
