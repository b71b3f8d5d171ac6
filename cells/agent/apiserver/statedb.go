package apiserver

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/cilium/statedb"
	"golang.org/x/sync/semaphore"
)

const (
	// maxStreams limits open streams of changes. Each stream keeps rows in memory that are deleted while it is open.
	maxStreams = 16
	// writeTimeout ends a stream whose reader has stalled. The keep-alive of 30 s detects a reader that disconnected.
	writeTimeout = 20 * time.Second
	// maxDumpTime limits the duration of one dump or query.
	maxDumpTime = 5 * time.Minute
)

// newStateDB wraps statedb's handler with limits, because many users may open the socket.
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
	mux.HandleFunc("GET /query", func(w http.ResponseWriter, r *http.Request) {
		if err := checkIndex(db, w, r); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			_ = json.NewEncoder(w).Encode(statedb.QueryResponse{Err: err.Error()})
			return
		}
		dump(w, r)
	})
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

// checkIndex rejects a query by an index that the table does not have, because statedb would panic. statedb handles all other invalid queries.
func checkIndex(db *statedb.DB, w http.ResponseWriter, r *http.Request) error {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return err
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	var query statedb.QueryRequest
	if json.Unmarshal(body, &query) != nil {
		return nil
	}
	table := db.GetTable(db.ReadTxn(), query.Table)
	if table == nil || query.Index == statedb.RevisionIndex || slices.Contains(table.Indexes(), query.Index) {
		return nil
	}
	return fmt.Errorf("table %s has no index %s: use one of %s, %s", query.Table, clip(query.Index), statedb.RevisionIndex,
		strings.Join(table.Indexes(), ", "))
}

// stream extends the write deadline at each write.
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
