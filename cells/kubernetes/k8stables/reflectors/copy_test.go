package reflectors

import (
	"context"
	"net/http"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waggle-net/waggle/cells/kubernetes/k8stables/snapshot"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
)

// An agent that stops writes changes to the copy, also if its context has ended before it checks for them.
func TestChanged_ContextEnded_ReportsChange(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	still, closed := make(chan struct{}), make(chan struct{})
	close(closed)
	for range 1000 {
		if !changed(ended, []<-chan struct{}{still, closed}, time.Hour) {
			t.Fatal("a change was not seen")
		}
	}
	if changed(ended, []<-chan struct{}{still}, time.Hour) {
		t.Error("a change was seen where there was none")
	}
	if changed(t.Context(), []<-chan struct{}{still}, time.Nanosecond) {
		t.Error("the time that has passed was taken for a change")
	}
}

// While the API server does not list pods, the pods of a copy stay as old as the first copy, also in copies that are written meanwhile and after a restart.
func TestCopy_OfUnsyncedTable_KeepsItsAge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server, path := kubetest.New(t, kubetest.InMemory()), filepath.Join(t.TempDir(), "k8s-snapshot")
		server.Put(node("one", "192.0.2.1"), pod("a", "p", "one"))
		r := follow(t, server, Settings{Copy: path}, false)
		r.synced(t)
		time.Sleep(longestCopyPause + time.Minute)
		r.stop()
		first := r.source("k8s-pods").Copy
		server.Fault(func(q *http.Request) (int, string) {
			if has(q.URL.Path, "/pods") {
				return http.StatusServiceUnavailable, ""
			}
			return 0, ""
		})
		for _, name := range []string{"two", "three"} {
			time.Sleep(time.Hour)
			server.Put(node(name, "192.0.2.2"))
			r = follow(t, server, Settings{Copy: path}, false)
			time.Sleep(longestCopyPause + time.Minute)
			file, err := snapshot.Read(path)
			if err != nil {
				t.Fatal(err)
			}
			h, rows, err := snapshot.Decode(file, "one")
			if err != nil {
				t.Fatal(err)
			}
			written := false
			for _, row := range rows {
				written = written || row.Table == "k8s-nodes" && has(string(row.Row), name)
			}
			if !written {
				t.Fatalf("the copy lacks node %s", name)
			}
			if now := r.source("k8s-pods").Copy; first.IsZero() || !h.Written.Equal(first) || !now.Equal(first) {
				t.Errorf("the pods are of %s, after a restart of %s, want %s", now, h.Written, first)
			}
			if name != "three" {
				r.stop()
			}
		}
		server.Fault(nil)
		r.synced(t)
		time.Sleep(longestCopyPause + time.Minute)
		if now := r.source("k8s-pods").Copy; time.Since(now) > time.Hour {
			t.Errorf("after the list, the copy is of %s", now)
		}
	})
}
