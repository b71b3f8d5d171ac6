package servicestatus

import (
	"context"
	"iter"
	"time"

	"github.com/cilium/statedb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/waggle-net/waggle/pkg/kubeapi"
	"github.com/waggle-net/waggle/pkg/tables/leadership"
)

// EventReason is that of all Events of this cell.
const EventReason = "AnnotationWithoutEffect"

const timeout = 10 * time.Second // of one request

// teller says what statements want said.
type teller struct{ params }

// Update implements reconciler.Operations.
func (t *teller) Update(ctx context.Context, _ statedb.ReadTxn, _ statedb.Revision, s *statement) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := leadership.Check(t.DB, t.Leadership); err != nil {
		return err
	}
	about := corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: s.Namespace, Name: s.Name, UID: types.UID(s.UID)}
	return t.Client.Tell(ctx, kubeapi.NewWarning(about, EventReason, s.Message, time.Now()))
}

// Delete implements reconciler.Operations. What was said stays.
func (*teller) Delete(context.Context, statedb.ReadTxn, statedb.Revision, *statement) error {
	return nil
}

// Prune implements reconciler.Operations. It is never asked for.
func (*teller) Prune(context.Context, statedb.ReadTxn, iter.Seq2[*statement, statedb.Revision]) error {
	return nil
}
