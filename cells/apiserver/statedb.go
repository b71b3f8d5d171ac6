package apiserver

import (
	"errors"
	"net/http"
	"time"

	"github.com/cilium/statedb"
	"golang.org/x/sync/semaphore"
)

const (
	// maxStreams bounds open streams of changes: each one retains rows that are deleted meanwhile.
	maxStreams = 16
	// writeTimeout ends a stream whose reader takes nothing any more. The keep-alive of 30 s notices one that left.
	writeTimeout = 20 * time.Second
	// maxDumpTime bounds one dump or query.
	maxDumpTime = 5 * time.Minute
)

// newStateDB serves statedb's own handler, made safe for a socket that many may open.
func newStateDB(db *statedb.DB) http.Handler {
	inner := db.HTTPHandler()
	streams := semaphore.NewWeighted(maxStreams)
	mux := http.NewServeMux()
	known := func(next http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			table := r.PathValue("table")
			if db.GetTable(db.ReadTxn(), table) == nil {
				reject(w, http.StatusNotFound, "table "+clip(table)+" was not found")
				return
			}
			next(w, r)
		}
	}
	dump := func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(maxDumpTime))
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		inner.ServeHTTP(w, r)
	}
	mux.HandleFunc("GET /dump", dump)
	mux.HandleFunc("GET /dump/{table}", known(dump))
	mux.HandleFunc("GET /query", dump)
	mux.HandleFunc("GET /changes/{table}", known(func(w http.ResponseWriter, r *http.Request) {
		if !streams.TryAcquire(1) {
			fail(w, http.StatusTooManyRequests, errStreams)
			return
		}
		defer streams.Release(1)
		controller := http.NewResponseController(w)
		_ = controller.SetReadDeadline(time.Time{})
		inner.ServeHTTP(&stream{w, controller}, r)
	}))
	return routed(mux)
}

// stream renews the deadline at each write.
type stream struct {
	http.ResponseWriter
	controller *http.ResponseController
}

func (s *stream) Write(b []byte) (int, error) {
	_ = s.controller.SetWriteDeadline(time.Now().Add(writeTimeout))
	return s.ResponseWriter.Write(b)
}

func (s *stream) Flush() {
	_ = s.controller.SetWriteDeadline(time.Now().Add(writeTimeout))
	_ = s.controller.Flush()
}

var errStreams = errors.New("too many streams of changes are open: close one, or read with /statedb/query")
