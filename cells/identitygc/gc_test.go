package identitygc

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubeapi/kubetest"
	"github.com/waggle-net/waggle/pkg/tables/leadership"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func identity(id int, manager string) *ciliumv2.CiliumIdentity {
	return &ciliumv2.CiliumIdentity{ObjectMeta: metav1.ObjectMeta{Name: strconv.Itoa(id), Labels: map[string]string{ciliumv2.ManagedByLabel: manager}},
		SecurityLabels: map[string]string{"k8s:app": strconv.Itoa(id)}}
}

func endpoint(name string, id int64) *ciliumv2.CiliumEndpoint {
	e := &ciliumv2.CiliumEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	if id != 0 {
		e.Status.Identity = &ciliumv2.EndpointIdentity{ID: id}
	}
	return e
}

// rig is a collector with a clock of its own.
type rig struct {
	*collector
	server *kubetest.Server
	time   time.Time
}

func newRig(t *testing.T, s *kubetest.Server) *rig {
	t.Helper()
	db := statedb.New()
	leaders, err := leadership.NewTable(db)
	require.NoError(t, err)
	txn := db.WriteTxn(leaders)
	defer txn.Abort()
	_, _, err = leaders.Insert(txn, leadership.Leadership{Lease: "x", Until: time.Now().Add(time.Hour)})
	require.NoError(t, err)
	txn.Commit()
	r := &rig{server: s, time: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	r.collector = newCollector(params{Log: slog.New(slog.DiscardHandler), DB: db, Leadership: leaders, Config: DefaultConfig, Client: s.Client(t)})
	r.now = func() time.Time { return r.time }
	return r
}

// after makes a round some time later.
func (r *rig) after(t *testing.T, d time.Duration) summary {
	t.Helper()
	r.time = r.time.Add(d)
	sum, err := r.round(t.Context())
	require.NoError(t, err)
	return sum
}

func (r *rig) names() string {
	var out []string
	for _, o := range r.server.List(kubeapi.CiliumIdentities) {
		id := o.(*ciliumv2.CiliumIdentity)
		name := id.Name
		if id.Annotations[ciliumv2.HeartbeatAnnotation] != "" {
			name += "!"
		}
		out = append(out, name)
	}
	return strings.Join(out, " ")
}

func TestRound_MarksThenDeletesWhatNobodyHas(t *testing.T) {
	t.Parallel()
	s := kubetest.New(t, kubetest.InMemory())
	s.Put(identity(300, ciliumv2.ManagedByUs), identity(301, ciliumv2.ManagedByUs), identity(302, "other"), identity(303, ciliumv2.ManagedByUs),
		endpoint("web", 300), endpoint("bare", 0))
	r := newRig(t, s)
	require.Equal(t, summary{all: 3, unused: 2}, r.after(t, 0))
	require.Equal(t, "300 301! 302 303!", r.names())
	require.Equal(t, summary{all: 3, unused: 2}, r.after(t, 29*time.Minute))

	// One that somebody takes again begins anew.
	s.Put(endpoint("db", 303))
	require.Equal(t, summary{all: 3, unused: 1, deleted: 1}, r.after(t, time.Minute))
	require.Equal(t, "300 302 303", r.names())
	s.Remove(kubeapi.CiliumEndpoints, "ns", "db")
	require.Zero(t, r.after(t, time.Minute).deleted)
	require.Zero(t, r.after(t, 29*time.Minute).deleted)
	require.Equal(t, 1, r.after(t, time.Minute).deleted)
	require.Equal(t, "300 302", r.names())
}

// A replica whose clock is ahead, or that has just begun to lead, does not believe a time that another wrote.
func TestRound_TwiceBeforeAnythingGoes(t *testing.T) {
	t.Parallel()
	s := kubetest.New(t, kubetest.InMemory())
	old := identity(301, ciliumv2.ManagedByUs)
	old.Annotations = map[string]string{ciliumv2.HeartbeatAnnotation: "2001-01-01T00:00:00Z"}
	future := identity(302, ciliumv2.ManagedByUs)
	future.Annotations = map[string]string{ciliumv2.HeartbeatAnnotation: "2999-01-01T00:00:00Z"}
	broken := identity(303, ciliumv2.ManagedByUs)
	broken.Annotations = map[string]string{ciliumv2.HeartbeatAnnotation: "soon"}
	s.Put(old, future, broken, identity(300, ciliumv2.ManagedByUs), endpoint("web", 300))
	r := newRig(t, s)
	require.Zero(t, r.after(t, 0).deleted)
	require.Equal(t, 1, r.after(t, time.Minute).deleted)
	require.Equal(t, "300 302! 303!", r.names())
	require.Equal(t, 2, r.after(t, 30*time.Minute).deleted, "their times were written anew")
}

// Whoever takes an identity while a round goes on keeps it.
func TestRound_TakenBetweenTheListsAndTheDeletion(t *testing.T) {
	t.Parallel()
	s := kubetest.New(t, kubetest.InMemory())
	s.Put(identity(300, ciliumv2.ManagedByUs), identity(301, ciliumv2.ManagedByUs), endpoint("web", 300))
	r := newRig(t, s)
	r.after(t, 0)
	r.after(t, 29*time.Minute)
	lists := 0
	s.Fault(func(q *http.Request) (int, string) {
		if q.Method == http.MethodGet && strings.HasSuffix(q.URL.Path, "ciliumendpoints") {
			if lists++; lists == 2 {
				s.Put(endpoint("late", 301))
			}
		}
		return 0, ""
	})
	require.Zero(t, r.after(t, 10*time.Minute).deleted)
	require.Equal(t, 2, lists)
	require.Equal(t, "300 301!", r.names())

	// Likewise when the object has changed.
	s.Remove(kubeapi.CiliumEndpoints, "ns", "late")
	s.Fault(func(q *http.Request) (int, string) {
		if q.Method == http.MethodDelete {
			changed := identity(301, ciliumv2.ManagedByUs)
			changed.Labels["changed"] = "yes"
			s.Put(changed)
		}
		return 0, ""
	})
	require.Zero(t, r.after(t, time.Minute).deleted)
	require.Equal(t, "300 301", r.names())
}

// An API server that misbehaves gets nothing deleted.
func TestRound_AServerThatMisbehaves(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(*kubetest.Server){
		"endpoints cannot be listed":  func(s *kubetest.Server) { s.Deny("list", kubeapi.CiliumEndpoints) },
		"identities cannot be listed": func(s *kubetest.Server) { s.Deny("list", kubeapi.CiliumIdentities) },
		"there are no endpoints":      func(s *kubetest.Server) { s.Remove(kubeapi.CiliumEndpoints, "ns", "web") },
		"it is away":                  func(s *kubetest.Server) { s.Stop() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := kubetest.New(t, kubetest.InMemory())
			s.Put(identity(300, ciliumv2.ManagedByUs), identity(301, ciliumv2.ManagedByUs), endpoint("web", 300))
			r := newRig(t, s)
			r.after(t, 0)
			r.after(t, 29*time.Minute)
			fault(s)
			r.time = r.time.Add(time.Hour)
			sum, err := r.round(t.Context())
			if sum.deleted != 0 || err == nil && !sum.blind {
				t.Fatalf("%+v, error %v", sum, err)
			}
			require.Len(t, s.List(kubeapi.CiliumIdentities), 2)
		})
	}
}

// When most would go, one more round must agree; and a round has an end.
func TestRound_Many(t *testing.T) {
	t.Parallel()
	s := kubetest.New(t, kubetest.InMemory())
	s.Put(identity(300, ciliumv2.ManagedByUs), endpoint("web", 300))
	for i := range mostInOneRound + 100 {
		o := identity(1000+i, ciliumv2.ManagedByUs)
		o.Annotations = map[string]string{ciliumv2.HeartbeatAnnotation: "2001-01-01T00:00:00Z"}
		s.Put(o)
	}
	r := newRig(t, s)
	require.Zero(t, r.after(t, 0).deleted)
	require.Zero(t, r.after(t, time.Minute).deleted)
	require.Equal(t, mostInOneRound, r.after(t, time.Minute).deleted)
	require.Equal(t, 100, r.after(t, time.Minute).deleted)
	require.Equal(t, "300", r.names())
}

func TestRegister_RefusesOptionsThatCannotBeMeant(t *testing.T) {
	t.Parallel()
	require.ErrorContains(t, register(nil, params{Config: Config{-1, 1}}), "--identity-gc-interval")
	require.ErrorContains(t, register(nil, params{Config: Config{1, 0}}), "--identity-heartbeat-timeout")
	require.NoError(t, errors.Join(register(nil, params{Config: Config{0, 1}})))
}

func TestScripts(t *testing.T) {
	celltest.RunVirtual(t, "testdata/*.txtar", func(t testing.TB) []cell.Cell {
		s := kubetest.New(t, kubetest.InMemory())
		s.Put(identity(300, ciliumv2.ManagedByUs), endpoint("web", 300))
		for i := range 5 {
			s.Put(identity(400+i, fmt.Sprint("other", i)))
		}
		client := s.Client(t)
		return []cell.Cell{Cell, cell.Provide(func() *kubeapi.Client { return client },
			leadership.NewTable, statedb.RWTable[leadership.Leadership].ToTable)}
	})
}
