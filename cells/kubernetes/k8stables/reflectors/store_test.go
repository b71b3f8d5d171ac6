package reflectors

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/cells/kubernetes/k8stables/tables"
)

// newStore returns the store of nodes, without a reflector.
func newStore(t testing.TB) *store {
	t.Helper()
	set, k := newSet(t), kinds("one")[0]
	table, _ := set.ByName(k.table)
	txn := set.Write(table)
	done := table.Initializer(txn, "test")
	txn.Commit()
	r := &report{set: set, table: k.table, health: newRecorder()}
	return &store{kind: k, set: set, table: table, lw: &listWatch{report: r}, report: r, wake: make(chan struct{}, 1),
		initialized: done, rejected: map[string]tables.Reject{}}
}

func small(t *testing.T, name, address, version string) *object {
	t.Helper()
	n := node(name, address)
	n.ResourceVersion = version
	o, err := converter{nodeName: "one"}.convert(n)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func list(t *testing.T, n int) (out []any) {
	t.Helper()
	for i := range n {
		out = append(out, small(t, fmt.Sprint("n", i), "192.0.2.1", "1"))
	}
	return out
}

func TestReplace_MuchShorterList_IsConfirmed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		before, after int
		believed      bool
	}{{0, 0, true}, {1, 0, false}, {30, 0, false}, {30, 14, false}, {30, 15, true}, {10, 1, true}, {30, 31, true}} {
		s := newStore(t)
		s.holds = false
		if err := s.Replace(list(t, c.before), "10"); err != nil {
			t.Fatal(err)
		}
		if err := s.Replace(list(t, c.after), "20"); (err == nil) != c.believed || s.lw.quorum.Load() == c.believed {
			t.Errorf("%d objects after %d: %v", c.after, c.before, err)
		}
		if err := s.Replace(list(t, c.after), "30"); err != nil || s.lw.quorum.Load() {
			t.Errorf("%d objects after %d, for the second time: %v", c.after, c.before, err)
		}
		rows := 0
		for range s.table.All(s.set.DB.ReadTxn()) {
			rows++
		}
		if rows != c.after {
			t.Errorf("%d rows, want %d", rows, c.after)
		}
	}
}

func TestTake_DropsOldEvents(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	if err := s.Replace([]any{small(t, "a", "192.0.2.1", "5")}, "10"); err != nil {
		t.Fatal(err)
	}
	for _, e := range []struct{ address, version string }{{"192.0.2.5", "10"}, {"192.0.2.12", "12"}, {"192.0.2.11", "11"}} {
		if err := s.Update(small(t, "a", e.address, e.version)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Delete(small(t, "a", "192.0.2.1", "9")); err != nil {
		t.Fatal(err)
	}
	if err := s.flush(); err != nil {
		t.Fatal(err)
	}
	if row, ok := s.table.Get(s.set.DB.ReadTxn(), "a"); !ok || fmt.Sprint(row) != fmt.Sprint(small(t, "a", "192.0.2.12", "12").row) {
		t.Errorf("row %v", row)
	}
}

// TestTake_BurstIsOneCommit counts commits by the revisions at which the table's watch channel closes.
func TestTake_BurstIsOneCommit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		for i := range 100 {
			if err := s.Add(small(t, fmt.Sprint("n", i), "192.0.2.1", fmt.Sprint(i+1))); err != nil {
				t.Fatal(err)
			}
		}
		changed := s.table.Changed(s.set.DB.ReadTxn())
		go s.commits(ctx)
		<-changed
		rows := 0
		for range s.table.All(s.set.DB.ReadTxn()) {
			rows++
		}
		if rows != 100 {
			t.Errorf("the first commit has %d rows", rows)
		}
	})
}

// While another kind writes a long list, events of valid objects are committed; an object that becomes valid again waits, because its row in k8s-rejects is
// deleted in the same commit.
func TestFlush_ValidObject_DoesNotWaitForOtherKinds(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	if err := s.Replace(list(t, 1), "10"); err != nil {
		t.Fatal(err)
	}
	invalid := small(t, "bad", "192.0.2.9", "11")
	invalid.row, invalid.err = nil, errors.New("invalid")
	if err := errors.Join(s.Add(invalid), s.flush()); err != nil || len(s.rejected) != 1 {
		t.Fatalf("%d objects are rejected: %v", len(s.rejected), err)
	}
	flush := func(o *object) <-chan error {
		if err := s.Update(o); err != nil {
			t.Fatal(err)
		}
		flushed := make(chan error, 1)
		go func() { flushed <- s.flush() }()
		return flushed
	}
	other := s.set.Write() // of another kind
	defer other.Abort()
	select {
	case err := <-flush(small(t, "n0", "192.0.2.12", "12")):
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the event of a valid object waits")
	}
	valid := flush(small(t, "bad", "192.0.2.13", "13"))
	select {
	case <-valid:
		t.Fatal("the transaction of a rejected object lacks k8s-rejects")
	case <-time.After(20 * time.Millisecond):
	}
	other.Abort()
	if err := <-valid; err != nil || len(s.rejected) != 0 || s.set.Rejects.NumObjects(s.set.DB.ReadTxn()) != 0 {
		t.Errorf("%d objects are rejected: %v", len(s.rejected), err)
	}
	for name, address := range map[string]string{"n0": "192.0.2.12", "bad": "192.0.2.13"} {
		if row, found := s.table.Get(s.set.DB.ReadTxn(), name); !found || fmt.Sprint(row) != fmt.Sprint(small(t, name, address, "1").row) {
			t.Errorf("row %v", row)
		}
	}
}

func TestBackoff_IsNeverLongerThanFourSeconds(t *testing.T) {
	t.Parallel()
	delay := backoff().DelayWithReset(untilDone{}, time.Hour)
	longest := time.Duration(0)
	for range 1000 {
		longest = max(longest, delay())
	}
	if longest > 4*time.Second || longest < 2*time.Second {
		t.Errorf("the longest pause is %v", longest)
	}
}

// TestObject_IsCopied: a reflector may copy its objects.
func TestObject_IsCopied(t *testing.T) {
	t.Parallel()
	o := small(t, "a", "192.0.2.1", "1")
	if c, ok := o.DeepCopyObject().(metav1.Object); !ok || c.GetName() != "a" || c.GetResourceVersion() != "1" {
		t.Errorf("copy %v", c)
	}
}
