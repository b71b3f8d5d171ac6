package servicestatus

import (
	"context"
	"iter"
	"maps"
	"time"

	"github.com/cilium/statedb"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/leaderwork"
)

// EventReason is the reason of all Events of this cell.
const EventReason = "AnnotationWithoutEffect"

const (
	timeout = 10 * time.Second // of one request
	// between is the minimum time between two Events of a Service, because a user may change the annotations in a loop. Rows are refreshed at the same interval,
	// so a delayed message is written later.
	between = 5 * time.Minute
)

// emitter creates the Events of statements. It is for one goroutine.
type emitter struct {
	params
	last  map[string]emitted // by key of the Service; entries of Services without a row are kept for at least [between]
	swept time.Time          // when old entries of last were removed
}

// emitted is the last Event of a Service, or one that the API server rejects.
type emitted struct {
	message string
	at      time.Time
	gone    bool // the row was deleted
}

func newEmitter(p params) *emitter { return &emitter{params: p, last: map[string]emitted{}} }

// Update implements reconciler.Operations. An Event that the API server rejects (a missing permission, a full quota, an invalid name) is retried after
// [between].
func (e *emitter) Update(ctx context.Context, _ statedb.ReadTxn, _ statedb.Revision, s *statement) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := leaderwork.Check(e.DB, e.Leadership); err != nil {
		return err
	}
	now := time.Now()
	last, known := e.last[s.key()]
	if known && (now.Sub(last.at) < between || last.message == s.UID+s.Message) {
		last.gone = false
		e.last[s.key()] = last
		return nil
	}
	about := corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: s.Namespace, Name: s.Name, UID: types.UID(s.UID)}
	err := e.Client.Emit(ctx, kubeapi.NewWarning(about, EventReason, s.Message, now))
	switch {
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err):
		e.Log.Warn("API server rejects an Event of a Service", "service", s.key(), "error", err)
		e.last[s.key()] = emitted{at: now}
		return nil
	case err == nil:
		e.last[s.key()] = emitted{message: s.UID + s.Message, at: now}
	}
	return err
}

// Delete implements reconciler.Operations. The Event stays.
func (e *emitter) Delete(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, s *statement) error {
	now := time.Now()
	if last, known := e.last[s.key()]; known {
		last.gone = true
		e.last[s.key()] = last
	}
	if now.Sub(e.swept) >= between {
		maps.DeleteFunc(e.last, func(_ string, last emitted) bool { return last.gone && now.Sub(last.at) >= between })
		e.swept = now
	}
	return nil
}

// Prune implements reconciler.Operations. It is never called.
func (*emitter) Prune(context.Context, statedb.ReadTxn, iter.Seq2[*statement, statedb.Revision]) error {
	return nil
}
