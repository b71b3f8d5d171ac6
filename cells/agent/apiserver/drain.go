package apiserver

import (
	"context"
	"errors"
	"net/http"
	"time"
)

const (
	// finishTimeout is the time for requests to finish when the agent stops. An ADD needs a tenth of it.
	finishTimeout = time.Second
	// cutTimeout is the time for canceled requests to write their error reply.
	cutTimeout = 500 * time.Millisecond
	// retryAfter is the value of the header Retry-After, in seconds: the duration of a restart.
	retryAfter = "1"
)

var errStopping = errors.New("the agent is stopping: retry in a few seconds")

// drain lets requests finish when the agent stops. Its two contexts are canceled one after the other.
type drain struct {
	begun, cut           context.Context // no new requests; running requests are canceled
	begin, cancelRunning context.CancelFunc
}

func newDrain() *drain {
	d := &drain{}
	d.begun, d.begin = context.WithCancel(context.Background())
	d.cut, d.cancelRunning = context.WithCancel(context.Background())
	return d
}

// rejectNew replies 503 to new requests on connections that are already open, and to canceled requests. Streams of changes never end by themselves, so they are
// canceled at once.
func (d *drain) rejectNew(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if d.begun.Err() != nil {
			w.Header().Set("Retry-After", retryAfter)
			fail(w, http.StatusServiceUnavailable, errStopping)
			return
		}
		end := d.cut
		if isStream(r) {
			end = d.begun
		}
		ctx, cancel := context.WithCancelCause(r.Context())
		defer cancel(nil)
		defer context.AfterFunc(end, func() { cancel(errStopping) })()
		next.ServeHTTP(&cutWriter{w, d.cut}, r.WithContext(ctx))
	})
}

// stop returns when no request is running, after finishTimeout plus cutTimeout at most.
func (d *drain) stop(s *http.Server) error {
	d.begin()
	ended := func(within time.Duration) bool {
		ctx, cancel := context.WithTimeout(context.Background(), within)
		defer cancel()
		return s.Shutdown(ctx) == nil
	}
	if ended(finishTimeout) {
		return nil
	}
	d.cancelRunning()
	if ended(cutTimeout) {
		return nil
	}
	return s.Close()
}

// cutWriter replaces error replies of canceled requests by 503 with Retry-After.
type cutWriter struct {
	http.ResponseWriter
	cut context.Context
}

// WriteHeader implements http.ResponseWriter.
func (w *cutWriter) WriteHeader(code int) {
	if code >= http.StatusInternalServerError && w.cut.Err() != nil {
		w.Header().Set("Retry-After", retryAfter)
		code = http.StatusServiceUnavailable
	}
	w.ResponseWriter.WriteHeader(code)
}

// Unwrap lets http.ResponseController reach deadlines and flush.
func (w *cutWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
