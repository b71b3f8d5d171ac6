package leaderelection

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/waggle-net/waggle/pkg/leaderwork"
	"github.com/waggle-net/waggle/pkg/tables/leadership"
	"github.com/waggle-net/waggle/pkg/testseed"
)

var group = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

// server stores a Lease, with the rules of an API server, in the time of synctest.
type server struct {
	mu      sync.Mutex
	lease   *coordinationv1.Lease
	version int
	writes  []string
	noSpace bool // the namespace of the Lease does not exist
}

// line is the connection of one candidate to the server.
type line struct {
	server *server
	mu     sync.Mutex
	cut    bool          // requests hang
	late   time.Duration // delay of responses
	lose   bool          // the server executes requests, and the responses are lost
}

func (l *line) set(cut, lose bool, late time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut, l.lose, l.late = cut, lose, late
}

func (l *line) do(ctx context.Context, f func(*server) (*coordinationv1.Lease, error)) (*coordinationv1.Lease, error) {
	l.mu.Lock()
	cut, lose, late := l.cut, l.lose, l.late
	l.mu.Unlock()
	if cut {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	l.server.mu.Lock()
	lease, err := f(l.server)
	l.server.mu.Unlock()
	if lose {
		return nil, errors.New("connection reset")
	}
	select {
	case <-time.After(late):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return lease, err
}

func (l *line) get(ctx context.Context) (*coordinationv1.Lease, error) {
	return l.do(ctx, func(s *server) (*coordinationv1.Lease, error) {
		if s.lease == nil {
			return nil, apierrors.NewNotFound(group, leaseName)
		}
		return s.lease.DeepCopy(), nil
	})
}

func (l *line) create(ctx context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	return l.do(ctx, func(s *server) (*coordinationv1.Lease, error) {
		if s.noSpace {
			return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "ns")
		}
		if s.lease != nil {
			return nil, apierrors.NewAlreadyExists(group, leaseName)
		}
		return s.put(lease), nil
	})
}

func (l *line) update(ctx context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	return l.do(ctx, func(s *server) (*coordinationv1.Lease, error) {
		switch {
		case s.lease == nil:
			return nil, apierrors.NewNotFound(group, leaseName)
		case s.lease.ResourceVersion != lease.ResourceVersion:
			return nil, apierrors.NewConflict(group, leaseName, errors.New("changed"))
		}
		return s.put(lease), nil
	})
}

func (s *server) put(lease *coordinationv1.Lease) *coordinationv1.Lease {
	s.version++
	s.lease = lease.DeepCopy()
	s.lease.ResourceVersion = strconv.Itoa(s.version)
	s.writes = append(s.writes, holderOf(s.lease))
	return s.lease.DeepCopy()
}

// candidate is a running elector.
type candidate struct {
	*line
	db    *statedb.DB
	table statedb.Table[leadership.Leadership]
	stop  func()
}

func run(t *testing.T, s *server, name string) *candidate {
	t.Helper()
	db := statedb.New()
	table, err := leadership.NewTable(db)
	if err != nil {
		t.Fatal(err)
	}
	c := &candidate{line: &line{server: s}, db: db, table: table}
	set := settings{namespace: "ns", identity: name, lease: 15 * time.Second, renew: 10 * time.Second, period: 2 * time.Second}
	e := newElector(set, c.line, db, table, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	_, health := cell.NewSimpleHealth()
	go func() {
		defer close(done)
		if err := e.run(ctx, health); err != nil {
			t.Error(err)
		}
	}()
	c.stop = func() { cancel(); <-done }
	return c
}

func (c *candidate) leads() bool { return leaderwork.Check(c.db, c.table) == nil }

// wait waits until condition holds, and returns the elapsed time. At most one candidate leads at any time.
func wait(t *testing.T, most time.Duration, what string, condition func() bool, all ...*candidate) time.Duration {
	t.Helper()
	for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		synctest.Wait()
		leaders := 0
		for _, c := range all {
			if c.leads() {
				leaders++
			}
		}
		switch {
		case leaders > 1:
			t.Fatal("two lead at once")
		case condition():
			return time.Since(began)
		case time.Since(began) > most:
			t.Fatalf("%s: did not happen in %s", what, most)
		}
	}
}

func TestElection_LeaderFails_OtherCandidateLeads(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end      func(a *candidate)
		from, to time.Duration // when the other one leads: a Lease of 15 s, which it checks and tries to take every 2 s or slightly more
	}{
		"released":                {func(a *candidate) { a.stop() }, time.Second, 5 * time.Second},
		"requests hang":           {func(a *candidate) { a.set(true, false, 0) }, 12 * time.Second, 22 * time.Second},
		"every response is lost":  {func(a *candidate) { a.set(false, true, 0) }, 12 * time.Second, 22 * time.Second},
		"responses take too long": {func(a *candidate) { a.set(false, false, 11*time.Second) }, 12 * time.Second, 22 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &server{}
				a := run(t, s, "a")
				defer a.stop()
				wait(t, time.Second, "a leads", a.leads, a)
				b := run(t, s, "b")
				defer b.stop()
				calm(t, time.Minute, a, b)

				ends := time.Now()
				c.end(a)
				wait(t, 10*time.Second, "a stops", func() bool { return !a.leads() }, a, b)
				wait(t, c.to, "b leads", b.leads, a, b)
				if took := time.Since(ends); took < c.from || took > c.to {
					t.Errorf("b leads after %s, want %s to %s", took, c.from, c.to)
				}
				a.set(false, false, 0)
				calm(t, time.Minute, b, a)
			})
		})
	}
}

// calm lets time pass in which leader leads and the other one does not.
func calm(t *testing.T, long time.Duration, leader, other *candidate) {
	t.Helper()
	for end := time.Now().Add(long); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		synctest.Wait()
		if !leader.leads() || other.leads() {
			t.Fatal("the leader changed without a reason")
		}
	}
}

func TestElection_ShortOutageChangesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		a := run(t, s, "a")
		defer a.stop()
		wait(t, time.Second, "a leads", a.leads, a)
		b := run(t, s, "b")
		defer b.stop()
		a.set(false, true, 0) // written, but a gets no response
		calm(t, 6*time.Second, a, b)
		a.set(false, false, 0)
		calm(t, time.Minute, a, b)
	})
}

func TestElection_MissingNamespace_IsReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{noSpace: true}
		a := run(t, s, "a")
		defer a.stop()
		problem := func() string {
			for row := range a.table.All(a.db.ReadTxn()) {
				return row.Error
			}
			return ""
		}
		wait(t, time.Second, "the missing namespace is reported", func() bool {
			return strings.Contains(problem(), "create the namespace, or correct --leader-election-namespace")
		}, a)
		s.mu.Lock()
		s.noSpace = false
		s.mu.Unlock()
		wait(t, 5*time.Second, "a leads", a.leads, a)
		if text := problem(); text != "" {
			t.Errorf("the leader reports %q", text)
		}
	})
}

// TestElection_RandomFaults: two candidates never lead at once under random request faults, and in the end one leads.
func TestElection_RandomFaults(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		random := testseed.New(t)
		s := &server{}
		all := []*candidate{run(t, s, "a"), run(t, s, "b"), run(t, s, "c")}
		for range 500 {
			c := all[random.IntN(len(all))]
			c.set(random.IntN(3) == 0, random.IntN(3) == 0, time.Duration(random.IntN(12))*time.Second)
			end := time.Now().Add(time.Duration(random.IntN(20)) * time.Second)
			wait(t, time.Minute, "time passes", func() bool { return time.Now().After(end) }, all...)
		}
		for _, c := range all {
			c.set(false, false, 0)
		}
		wait(t, time.Minute, "one leads", func() bool { return slices.ContainsFunc(all, (*candidate).leads) }, all...)
		for _, c := range all {
			c.stop()
		}
	})
}

// TestAwait: the context of the work ends with the leadership, even without a change of the row.
func TestAwait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		a := run(t, s, "a")
		defer a.stop()
		ctx, done, err := leaderwork.Await(t.Context(), a.db, a.table)
		if err != nil {
			t.Fatal(err)
		}
		defer done()
		time.Sleep(time.Minute)
		if ctx.Err() != nil {
			t.Fatalf("the work ended: %v", context.Cause(ctx))
		}
		a.set(true, false, 0)
		began := time.Now()
		<-ctx.Done()
		if took := time.Since(began); took > 10*time.Second || !errors.Is(context.Cause(ctx), leaderwork.ErrNotLeading) {
			t.Errorf("the work ended after %s: %v", took, context.Cause(ctx))
		}
	})
}

func TestNewSettings_Rejects(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*Config){
		"--leader-election-lease-duration=1.5s": func(c *Config) { c.LeaseDuration = 1500 * time.Millisecond },
		"--leader-election-lease-duration=10s":  func(c *Config) { c.LeaseDuration = 10 * time.Second },
		"--leader-election-renew-deadline=2s":   func(c *Config) { c.RenewDeadline = 2 * time.Second },
		"--leader-election-retry-period=0s":     func(c *Config) { c.RetryPeriod = 0 },
	} {
		c := DefaultConfig
		change(&c)
		if _, err := newSettings(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestPublish_LogsTheFirstOfManyFailures(t *testing.T) {
	t.Parallel()
	db := statedb.New()
	table, err := leadership.NewTable(db)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	e := newElector(settings{namespace: "ns", identity: "a"}, nil, db, table, slog.New(slog.NewTextHandler(&out, nil)))
	for _, step := range []struct {
		failure string
		lines   int
	}{{"refused", 1}, {"refused", 0}, {"no answer", 0}, {"", 0}, {"refused", 1}} {
		out.Reset()
		row := e.row
		row.Error = step.failure
		if err := e.publish(row); err != nil {
			t.Fatal(err)
		}
		if got := out.String(); strings.Count(got, "level=WARN") != step.lines || (step.lines > 0 && !strings.Contains(got, "error="+step.failure)) {
			t.Errorf("%q: logged %q", step.failure, got)
		}
	}
}
