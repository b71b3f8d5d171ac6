package apiserver

import (
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/cilium/hive/job"

	"github.com/waggle-net/waggle/pkg/watchdog"
)

// recovered handles a panic of a handler: it logs the panic and replies with an error. The agent keeps running.
func recovered(log *slog.Logger, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		started := &startedWriter{ResponseWriter: w}
		defer func() {
			cause := recover()
			if cause == nil {
				return
			}
			if r.Context().Err() != nil { // statedb's handler panics when its client disconnects
				panic(http.ErrAbortHandler)
			}
			log.Error("A handler of the API panicked", "method", r.Method, "path", r.URL.Path, "cause", cause,
				"stack", string(debug.Stack()))
			if started.started {
				panic(http.ErrAbortHandler) // the client must see that the reply is incomplete
			}
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			w.WriteHeader(http.StatusInternalServerError)
			fmt.Fprintf(w, "the handler of %s panicked: %v\n", r.URL.Path, cause)
		}()
		next.ServeHTTP(started, r)
	})
}

// stuckAfter is the duration after which a handler counts as stalled: longer than any client can delay it, and less than the minute in which stalls must be
// detected.
const stuckAfter = apiTimeout + 10*time.Second

// watched lets the watchdog detect a handler that stalls, for instance on a lock. Streams of changes never end and are not watched.
func watched(jobs job.Group, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isStream(r) {
			defer watchdog.Task(jobs, "answer-"+strings.ToLower(r.Method), stuckAfter)()
		}
		next.ServeHTTP(w, r)
	})
}

// isStream reports whether a request never ends by itself.
func isStream(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, "/statedb/") }

// startedWriter records whether the reply has begun.
type startedWriter struct {
	http.ResponseWriter
	started bool
}

func (w *startedWriter) WriteHeader(code int) {
	w.started = true
	w.ResponseWriter.WriteHeader(code)
}

func (w *startedWriter) Write(b []byte) (int, error) {
	w.started = true
	return w.ResponseWriter.Write(b)
}

// Flush is called by statedb's handler for changes.
func (w *startedWriter) Flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }

// Unwrap lets http.ResponseController reach deadlines.
func (w *startedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// routed replies to unknown paths and wrong methods in the form of the router's errors, and passes other requests to mux.
func routed(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler, pattern := mux.Handler(r)
		if pattern != "" {
			mux.ServeHTTP(w, r)
			return
		}
		verdict := headOnly{header: w.Header(), code: http.StatusNotFound}
		handler.ServeHTTP(&verdict, r)
		w.Header().Del("X-Content-Type-Options")
		if verdict.code == http.StatusMethodNotAllowed {
			reject(w, verdict.code, fmt.Sprintf("method %s is not allowed, but [%s] are", clip(r.Method),
				strings.ReplaceAll(w.Header().Get("Allow"), ", ", ",")))
			return
		}
		reject(w, http.StatusNotFound, fmt.Sprintf("path %s was not found", clip(r.URL.Path)))
	})
}

// headOnly records the status and headers of a reply and discards the body.
type headOnly struct {
	header http.Header
	code   int
}

func (h *headOnly) Header() http.Header         { return h.header }
func (h *headOnly) WriteHeader(code int)        { h.code = code }
func (h *headOnly) Write(b []byte) (int, error) { return len(b), nil }
