package apiserver

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/watchdog"
)

// TestWatched_StalledHandler_IsReported checks that a stalled handler is detected within a minute of its request, not before its client's timeout, and no longer when
// it continues. A stream of changes never counts as stalled.
func TestWatched_StalledHandler_IsReported(t *testing.T) {
	t.Parallel()
	monitor, db := watchdog.NewMonitor(), statedb.New()
	came, thaw := make(chan struct{}), make(chan struct{})
	handler := watched(watchdog.NewGroup(nil, monitor, cell.FullModuleID{"api-server"}),
		http.HandlerFunc(func(http.ResponseWriter, *http.Request) { came <- struct{}{}; <-thaw }))
	var requests sync.WaitGroup
	for _, path := range []string{"/v1/endpoint/7", "/statedb/changes/endpoints"} {
		requests.Go(func() { handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPut, path, nil)) })
		<-came
	}
	var found []watchdog.Stall
	passed := time.Duration(0)
	for ; len(found) == 0 && passed < time.Hour; passed += watchdog.Interval {
		found = monitor.Step(watchdog.Interval, db.ReadTxn())
	}
	if len(found) != 1 || !strings.HasPrefix(found[0].What, "loop api-server/answer-put hangs") || passed > time.Minute || passed <= apiTimeout {
		t.Errorf("after %s: %+v", passed, found)
	}
	close(thaw)
	requests.Wait()
	if found := monitor.Step(watchdog.Interval, db.ReadTxn()); len(found) > 0 {
		t.Errorf("after the thaw: %+v", found)
	}
}
