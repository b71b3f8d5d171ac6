package apiserver

import (
	"context"
	"errors"
	"net/http"
	"time"
)

const (
	// finishTimeout is how long requests may finish when the agent stops: an ADD needs a tenth of it.
	finishTimeout = time.Second
	// cutTimeout is how long those that are cut short then may take to say so.
	cutTimeout = 500 * time.Millisecond
	// retryAfter, in seconds, is when an agent that restarts is back.
	retryAfter = "1"
)

var errStopping = errors.New("the agent stops: call again, the next one is there in a moment")

// drain lets requests finish when the agent stops. Its two contexts end one after the other.
type drain struct {
	begun, cut       context.Context // no new requests; those under way are cut short
	begin, cutBehind context.CancelFunc
}

func newDrain() *drain {
	d := &drain{}
	d.begun, d.begin = context.WithCancel(context.Background())
	d.cut, d.cutBehind = context.WithCancel(context.Background())
	return d
}

// refuse answers 503 to requests that come over connections which are open already, and to those that are cut short. Streams
// of changes have no end of their own, so they are cut at once.
func (d *drain) refuse(next http.Handler) http.Handler {
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

// stop returns when no request is under way, within finishTimeout and cutTimeout.
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
	d.cutBehind()
	if ended(cutTimeout) {
		return nil
	}
	return s.Close()
}

// cutWriter says of what fails because it was cut short that it may be tried again.
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
