package reflectors

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waggle-net/waggle/cells/kubernetes/k8stables/snapshot"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// An event that is pending when the agent ends is committed.
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
			synctest.Wait() // the second event waits for commitInterval
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

// The first event after a pause is committed immediately, and the following events with the next commit.
func TestCommits_Interval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
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
		time.Sleep(commitInterval - 1)
		if synctest.Wait(); has("b") {
			t.Errorf("b is committed before %s", commitInterval)
		}
		time.Sleep(time.Nanosecond)
		if synctest.Wait(); !has("b") {
			t.Errorf("b is not committed after %s", commitInterval)
		}
	})
}

// In a large cluster pods of other nodes change all the time. The first change after a pause is in the table immediately, and changes within
// remoteInterval are one commit.
func TestEvents_RemotePods_AreBatched(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := kubetest.New(t, kubetest.InMemory())
		server.Put(endpoint("far", 0))
		r := followWith(t, server.Client(t), Settings{CopyEvery: time.Hour}, false)
		r.synced(t)
		put := func(n int) (behind bool) {
			server.Put(endpoint("far", n))
			time.Sleep(commitInterval)
			synctest.Wait()
			return r.same(server, "one") != nil
		}
		for round := range 3 {
			time.Sleep(time.Second)
			if first := 1 + 100*round; put(first) {
				t.Error("a change after a pause waits")
			}
			commits, last := 0, ""
			for n := range 50 {
				put(2 + 100*round + n)
				if now := r.keys("cilium-endpoints")["a/far"]; now != last {
					commits, last = commits+1, now
				}
			}
			if most := 1 + int(2*50*commitInterval/remoteInterval); commits < 3 || commits > most {
				t.Errorf("50 changes in %v came in %d commits, want 3 to %d", 50*commitInterval, commits, most)
			}
			time.Sleep(remoteInterval)
			if synctest.Wait(); r.same(server, "one") != nil {
				t.Errorf("the table is behind %v after the last change", remoteInterval)
			}
		}
	})
}

// The last copy waits for the last commits, without a limit.
func TestCopy_ContainsLastEvents(t *testing.T) {
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
	time.Sleep(100 * time.Millisecond) // a copy that does not wait would be written in this time
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

// Tables that become complete at the deadline are complete.
func TestAwaitSync_CompleteAtDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
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
		s.carryOn = func() bool { // called at the deadline
			setAll(sources.Synced)
			return false
		}
		s.awaitSync(t.Context(), health)
		select {
		case <-end:
			t.Error("the agent ended")
		default:
		}
	})
}
