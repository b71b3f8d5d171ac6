package healthz

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/readiness"
	"github.com/waggle-net/waggle/pkg/version"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// handler answers probes from snapshots of tables and from the verdict of the monitor. It takes no lock that other code holds.
type handler struct{ http.Handler }

func newHandler(db *statedb.DB, tables readiness.Tables, monitor *watchdog.Monitor) handler {
	mux := http.NewServeMux()
	ready := func(w http.ResponseWriter, r *http.Request) {
		verdict := readiness.Evaluate(db.ReadTxn(), tables)
		// As in Cilium, a probe may leave out Kubernetes. A header that is not a boolean is ignored.
		if k8s, err := strconv.ParseBool(r.Header.Get("require-k8s-connectivity")); err == nil && !k8s {
			verdict.Sources = nil
		}
		state, message := verdict.Summary(version.String())
		code := http.StatusOK
		if !verdict.Ready() {
			code = http.StatusServiceUnavailable
		}
		writeLine(w, code, state+" - "+message)
	}
	live := func(w http.ResponseWriter, r *http.Request) {
		if stall, live := monitor.Live(r.Context()); !live {
			writeLine(w, http.StatusServiceUnavailable, "Failure - "+version.String()+": "+stall)
			return
		}
		writeLine(w, http.StatusOK, "Ok - "+version.String())
	}
	mux.HandleFunc("GET /readyz", ready)
	mux.HandleFunc("GET /livez", live)
	mux.HandleFunc("GET /healthz", live)
	return handler{mux}
}

func writeLine(w http.ResponseWriter, code int, line string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	fmt.Fprintln(w, line)
}
