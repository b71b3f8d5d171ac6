package reflectors

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waggle-net/waggle/cells/k8stables/snapshot"
	"github.com/waggle-net/waggle/pkg/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubeapi/kubetest"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// An event that waits for its commit when the agent ends is committed.
func TestCommits_EndLosesNoEvent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		ctx, cancel := context.WithCancel(t.Context())
		go s.commits(ctx)
		for i, name := range []string{"a", "b"} {
			if err := s.Add(small(t, name, "192.0.2.1", []string{"1", "2"}[i])); err != nil {
				t.Fatal(err)
			}
			synctest.Wait() // the second one has to wait for commitInterval
		}
		cancel()
		synctest.Wait()
		for _, name := range []string{"a", "b"} {
			if _, ok := s.table.Get(s.set.DB.ReadTxn(), name); !ok {
				t.Errorf("%s is not in the table", name)
			}
		}
	})
}

// The first event after a pause is committed at once, and what follows with the next commit: those of other nodes' pods wait longer.
func TestCommits_Interval(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		resource kubeapi.Resource
		want     time.Duration
	}{{kubeapi.Nodes, 10 * time.Millisecond}, {kubeapi.CiliumEndpoints, 50 * time.Millisecond}} {
		t.Run(test.resource.Plural, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newStore(t)
				s.resource = test.resource
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go s.commits(ctx)
				has := func(name string) bool { _, ok := s.table.Get(s.set.DB.ReadTxn(), name); return ok }
				synctest.Wait()
				for i, name := range []string{"a", "b"} {
					if err := s.Add(small(t, name, "192.0.2.1", []string{"1", "2"}[i])); err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
				}
				if !has("a") || has("b") {
					t.Errorf("committed at once: a %v, b %v; want only a", has("a"), has("b"))
				}
				time.Sleep(test.want - 1)
				if synctest.Wait(); has("b") {
					t.Errorf("b is committed before %s", test.want)
				}
				time.Sleep(time.Nanosecond)
				if synctest.Wait(); !has("b") {
					t.Errorf("b is not committed after %s", test.want)
				}
			})
		})
	}
}

// The last copy waits for the last commits, however long those take.
func TestCopy_HoldsTheLastEvents(t *testing.T) {
	t.Parallel()
	server, set := kubetest.New(t), newSet(t)
	server.Put(node("one", "192.0.2.1"))
	path, health := filepath.Join(t.TempDir(), "k8s-snapshot"), newRecorder()
	source, err := New(Settings{NodeName: "one", Copy: path, CopyEvery: time.Hour}, set, server.Client(t), func() bool { return false },
		make(ended), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() {
		if err := source.Run(ctx, health); err != nil {
			t.Error(err)
		}
	})
	defer done.Wait()
	defer cancel()
	r := &rig{Set: set, health: health}
	eventually(t, "all tables are copied", func() bool {
		for _, table := range r.All() {
			if r.source(table.Name()).Copy.IsZero() {
				return false
			}
		}
		return true
	})

	nodes := source.stores[0]
	nodes.apply.Lock()
	if err := nodes.Add(small(t, "last", "192.0.2.9", "1000000")); err != nil {
		t.Fatal(err)
	}
	cancel()
	time.Sleep(100 * time.Millisecond) // a copy that does not wait is made meanwhile
	nodes.apply.Unlock()
	done.Wait()
	_, rows, err := snapshot.Decode(must[[]byte](t)(snapshot.Read(path)), "one")
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range rows {
		if row.Table == "k8s-nodes" && has(string(row.Row), "192.0.2.9") {
			return
		}
	}
	t.Errorf("%d rows, none of which is the last", len(rows))
}

// Tables that become complete at the moment at which the agent would give up are complete.
func TestAwaitSync_CompleteAtTheLastMoment(t *testing.T) {
	t.Parallel()
	set, end, health := newSet(t), make(ended), newRecorder()
	s := &Source{settings: Settings{SyncTimeout: time.Millisecond}, set: set, shutdown: end}
	setAll := func(state sources.State) {
		txn := set.Write(set.All()...)
		defer txn.Commit()
		for _, table := range set.All() {
			if err := set.SetSource(txn, sources.Source{Table: table.Name(), Producer: Producer, State: state}); err != nil {
				t.Error(err)
			}
		}
	}
	setAll(sources.Waiting)
	s.carryOn = func() bool { // is asked when the time is over
		setAll(sources.Synced)
		return false
	}
	s.awaitSync(t.Context(), health)
	select {
	case <-end:
		t.Error("the agent ended")
	default:
	}
}
