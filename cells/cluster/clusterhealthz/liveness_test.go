package clusterhealthz

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/watchdog"
)

// TestLive_StalledLoop_IsUnhealthy also checks that /livez and /healthz are 200 again when the loop no longer hangs.
func TestLive_StalledLoop_IsUnhealthy(t *testing.T) {
	monitor, db := watchdog.NewMonitor(), statedb.New()
	h := newHandler(inputs{DB: db, Monitor: monitor})
	probe := func(want int, text string) {
		t.Helper()
		for _, path := range []string{"/livez", "/healthz"} {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
			if w.Code != want || !strings.Contains(w.Body.String(), text) {
				t.Errorf("%s: %d %s, want %d and %q", path, w.Code, w.Body, want, text)
			}
		}
	}
	end := watchdog.Task(watchdog.NewGroup(nil, monitor, cell.FullModuleID{"leader-election"}), "elect", time.Second)
	monitor.Step(watchdog.Interval, db.ReadTxn())
	probe(http.StatusOK, "Ok - ")
	monitor.Step(watchdog.Interval, db.ReadTxn())
	probe(http.StatusServiceUnavailable, "loop leader-election/elect hangs")
	end()
	monitor.Step(watchdog.Interval, db.ReadTxn())
	probe(http.StatusOK, "Ok - ")
}
