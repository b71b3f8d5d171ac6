package identitygc

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
	"github.com/waggle-net/waggle/pkg/tables/identityrounds"
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

func newRig(t testing.TB, s *kubetest.Server) *rig {
	t.Helper()
	db := statedb.New()
	leaders, err := leadership.NewTable(db)
	require.NoError(t, err)
	rounds, err := identityrounds.NewTable(db)
	require.NoError(t, err)
	txn := db.WriteTxn(leaders)
	defer txn.Abort()
	_, _, err = leaders.Insert(txn, leadership.Leadership{Lease: "x", Until: time.Now().Add(1000 * time.Hour)})
	require.NoError(t, err)
	txn.Commit()
	r := &rig{server: s, time: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	config := DefaultConfig
	config.Limit = 1e6 // the clock of these tests stops while a round waits
	r.collector = newCollector(params{Log: slog.New(slog.DiscardHandler), DB: db, Leadership: leaders, Rounds: rounds, Config: config, Client: s.Client(t)})
	r.now = func() time.Time { return r.time }
	return r
}

// after runs a round some time later.
func (r *rig) after(t *testing.T, d time.Duration) identityrounds.Round {
	t.Helper()
	r.time = r.time.Add(d)
	round, _, err := r.round(t.Context())
	require.NoError(t, err)
	round.Ended = time.Time{}
	return round
}

func (r *rig) names() string {
	var out []string
	for _, o := range r.server.List(kubeapi.CiliumIdentities) {
		out = append(out, o.(*ciliumv2.CiliumIdentity).Name)
	}
	return strings.Join(out, " ")
}

func TestRound_DeletesUnusedIdentities(t *testing.T) {
	t.Parallel()
	s := kubetest.New(t, kubetest.InMemory())
	s.Put(identity(300, ciliumv2.ManagedByUs), identity(301, ciliumv2.ManagedByUs), identity(302, "other"), identity(303, ciliumv2.ManagedByUs),
		endpoint("web", 300), endpoint("bare", 0))
	r := newRig(t, s)
	require.Equal(t, identityrounds.Round{All: 3, Unused: 2}, r.after(t, 0))
	require.Equal(t, identityrounds.Round{All: 3, Unused: 2}, r.after(t, 29*time.Minute))

	// The time of an identity that is used again starts again.
	s.Put(endpoint("db", 303))
	require.Equal(t, identityrounds.Round{All: 3, Unused: 1, Deleted: 1}, r.after(t, time.Minute))
	require.Equal(t, "300 302 303", r.names())
	s.Remove(kubeapi.CiliumEndpoints, "ns", "db")
	require.Zero(t, r.after(t, time.Minute).Deleted)
	require.Zero(t, r.after(t, 29*time.Minute).Deleted)
	require.Equal(t, 1, r.after(t, time.Minute).Deleted)
	require.Equal(t, "300 302", r.names())
}

// A new leader has none of the findings of the previous one.
func TestRound_NewLeader_StartsWithoutFindings(t *testing.T) {
	t.Parallel()
	s := kubetest.New(t, kubetest.InMemory())
	s.Put(identity(301, ciliumv2.ManagedByUs), identity(300, ciliumv2.ManagedByUs), endpoint("web", 300))
	r := newRig(t, s)
	r.after(t, 0)
	next := newRig(t, s)
	next.time = r.time.Add(time.Hour)
	require.Zero(t, next.after(t, 0).Deleted)
	require.Zero(t, next.after(t, 29*time.Minute).Deleted)
	require.Equal(t, 1, next.after(t, time.Minute).Deleted)
}

// An identity that gets a reference during a round is kept.
func TestRound_ReferencedBeforeDeletion_IsKept(t *testing.T) {
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
	require.Zero(t, r.after(t, 10*time.Minute).Deleted)
	require.Equal(t, 2, lists)
	require.Equal(t, "300 301", r.names())

	// An object that has changed is kept, too.
	s.Remove(kubeapi.CiliumEndpoints, "ns", "late")
	s.Fault(func(q *http.Request) (int, string) {
		if q.Method == http.MethodDelete {
			changed := identity(301, ciliumv2.ManagedByUs)
			changed.Labels["changed"] = "yes"
			s.Put(changed)
		}
		return 0, ""
	})
	require.Zero(t, r.after(t, time.Minute).Deleted)
	require.Equal(t, "300 301", r.names())
}

// With a faulty API server nothing is deleted.
func TestRound_FaultyAPIServer_DeletesNothing(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(*kubetest.Server){
		"endpoints cannot be listed":    func(s *kubetest.Server) { s.Deny("list", kubeapi.CiliumEndpoints) },
		"identities cannot be listed":   func(s *kubetest.Server) { s.Deny("list", kubeapi.CiliumIdentities) },
		"there are no endpoints":        func(s *kubetest.Server) { s.Remove(kubeapi.CiliumEndpoints, "ns", "web") },
		"the API server is unreachable": func(s *kubetest.Server) { s.Stop() },
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
			round, blind, err := r.round(t.Context())
			if round.Deleted != 0 || err == nil && !blind {
				t.Fatalf("%+v, error %v", round, err)
			}
			require.Len(t, s.List(kubeapi.CiliumIdentities), 2)
		})
	}
}

// When more than half of the identities would be deleted, one more round must agree.
func TestRound_Many(t *testing.T) {
	t.Parallel()
	s := kubetest.New(t, kubetest.InMemory())
	s.Put(identity(300, ciliumv2.ManagedByUs), endpoint("web", 300))
	for i := range 600 {
		s.Put(identity(1000+i, ciliumv2.ManagedByUs))
	}
	r := newRig(t, s)
	require.Zero(t, r.after(t, 0).Deleted)
	require.Zero(t, r.after(t, 30*time.Minute).Deleted)
	require.Equal(t, 600, r.after(t, time.Minute).Deleted)
	require.Equal(t, "300", r.names())
}

// TestLead_KeepsUpWithManyLabelSets: 600 label sets a minute are created and not used for 90 minutes, and for three hours with WAGGLE_TEST_SOAK, with
// the default limits. The number of identities stays bounded, the module is not Degraded, and the only writes are the deletions, at most 2,500 a minute. Reads
// are bounded as well: each round reads all identities once, and CiliumEndpoints at most once in 30 s while it deletes.
func TestLead_KeepsUpWithManyLabelSets(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := kubetest.New(t, kubetest.InMemory())
		s.Put(identity(300, ciliumv2.ManagedByUs), endpoint("web", 300))
		r := newRig(t, s)
		const each = 600 // label sets in a minute
		minutes := 90
		if os.Getenv("WAGGLE_TEST_SOAK") != "" {
			minutes = 180
		}
		r.now, r.Config = time.Now, DefaultConfig
		r.limiter = newCollector(r.params).limiter
		var writes, pages atomic.Int64
		s.Fault(func(q *http.Request) (int, string) {
			if q.Method == http.MethodGet {
				pages.Add(1)
			} else {
				writes.Add(1)
			}
			return 0, ""
		})
		health, last := cell.NewSimpleHealth()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			r.lead(ctx, health)
		}()
		most := 0
		for minute := range minutes {
			for i := range each {
				s.Put(identity(1000+each*minute+i, ciliumv2.ManagedByUs))
			}
			before := writes.Load()
			time.Sleep(30 * time.Second) // rounds start with a minute
			s.Compact()                  // bounds the memory of the test
			time.Sleep(30 * time.Second)
			synctest.Wait()
			most = max(most, 1+each*(minute+1)-int(writes.Load()))
			require.LessOrEqual(t, int(writes.Load()-before), r.Config.Limit+1)
			require.NoError(t, last.Error)
		}
		cancel()
		<-done
		left := len(s.List(kubeapi.CiliumIdentities))
		deleted := 1 + each*minutes - left
		t.Attr("most", fmt.Sprintf("%d identities at once", most))
		t.Attr("left", fmt.Sprintf("%d identities", left))
		t.Attr("writes", fmt.Sprintf("%.6f for each deleted identity, with %d requests for pages in all", float64(writes.Load())/float64(deleted), pages.Load()))
		require.Equal(t, deleted, int(writes.Load()), "each write has deleted an identity")
		// The maximum age is the timeout, an interval, and the duration of a round.
		require.LessOrEqual(t, most, each*(30+15+15))
		// Only identities that are younger than that are left.
		require.GreaterOrEqual(t, int(writes.Load()), each*(minutes-60))
		deleting := time.Duration(each*15) * r.Config.LimitInterval / time.Duration(r.Config.Limit) // in a round
		pagesOfRound := most/pageSize + 1 + 1 + int(deleting/fresh) + 1
		require.LessOrEqual(t, int(pages.Load()), pagesOfRound*(minutes/15+1))
	})
}

// TestLead_GrowingBacklog_IsDegraded: more identities become overdue than the limit allows to delete.
func TestLead_GrowingBacklog_IsDegraded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := kubetest.New(t, kubetest.InMemory())
		s.Put(identity(300, ciliumv2.ManagedByUs), endpoint("web", 300))
		r := newRig(t, s)
		r.now, r.Config = time.Now, Config{Interval: time.Minute, Timeout: time.Minute, Limit: 10, LimitInterval: time.Minute}
		r.limiter = newCollector(r.params).limiter
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		health, last := cell.NewSimpleHealth()
		go func() {
			defer close(done)
			r.lead(ctx, health)
		}()
		for minute := range 10 {
			time.Sleep(30 * time.Second) // rounds start with each minute
			for i := range 20 {
				s.Put(identity(1000+20*minute+i, ciliumv2.ManagedByUs))
			}
			time.Sleep(30 * time.Second)
		}
		synctest.Wait()
		require.ErrorContains(t, last.Error, "raise --identity-gc-rate-limit")
		time.Sleep(time.Hour)
		synctest.Wait()
		require.NoError(t, last.Error)
		require.Contains(t, last.Status, "1 identities, 0 of them unused", "without new identities")
		cancel()
		<-done
	})
}

func TestRegister_RejectsInvalidOptions(t *testing.T) {
	t.Parallel()
	with := func(change func(*Config)) params {
		p := params{Config: DefaultConfig}
		change(&p.Config)
		return p
	}
	require.ErrorContains(t, register(nil, with(func(c *Config) { c.Interval = -1 })), "--identity-gc-interval")
	require.ErrorContains(t, register(nil, with(func(c *Config) { c.Timeout = 0 })), "--identity-heartbeat-timeout")
	require.ErrorContains(t, register(nil, with(func(c *Config) { c.Limit = 0 })), "--identity-gc-rate-limit")
	require.ErrorContains(t, register(nil, with(func(c *Config) { c.LimitInterval = 0 })), "--identity-gc-rate-interval")
	require.NoError(t, register(nil, with(func(c *Config) { c.Interval = 0 })))
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
