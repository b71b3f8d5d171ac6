package policystatus

import (
	"context"
	"encoding/json"
	"iter"
	"slices"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/leaderwork"
	"github.com/waggle-net/waggle/pkg/policy"
)

// EventReason is the reason of all Events of this cell.
const EventReason = "PolicyNotEnforced"

const (
	writers      = 8                // concurrent requests; the client limits their rate
	writeTimeout = 10 * time.Second // of all requests about one object
)

// writer writes statements to the API server, as conditions and Events.
type writer struct{ params }

// UpdateBatch implements reconciler.BatchOperations. It runs updates concurrently, so that one slow response does not delay other objects.
func (w *writer) UpdateBatch(ctx context.Context, txn statedb.ReadTxn, batch []reconciler.BatchEntry[*statement]) {
	var group errgroup.Group
	group.SetLimit(writers)
	for i := range batch {
		group.Go(func() error {
			batch[i].Result = w.Update(ctx, txn, batch[i].Revision, batch[i].Object)
			return nil
		})
	}
	_ = group.Wait() // the results are in the entries
}

// Update implements reconciler.Operations.
func (w *writer) Update(ctx context.Context, _ statedb.ReadTxn, _ statedb.Revision, s *statement) error {
	if s.Valid == "" {
		return nil // the statement is not made yet; the write of the previous one has ended
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if err := w.setCondition(ctx, s); err != nil {
		return err
	}
	if s.Valid == valid {
		return nil
	}
	return w.emit(ctx, s)
}

// DeleteBatch implements reconciler.BatchOperations. It writes nothing: a condition is deleted with its object.
func (*writer) DeleteBatch(context.Context, statedb.ReadTxn, []reconciler.BatchEntry[*statement]) {}

// Delete implements reconciler.Operations.
func (*writer) Delete(context.Context, statedb.ReadTxn, statedb.Revision, *statement) error {
	return nil
}

// Prune implements reconciler.Operations. It is never called.
func (*writer) Prune(context.Context, statedb.ReadTxn, iter.Seq2[*statement, statedb.Revision]) error {
	return nil
}

// setCondition writes the condition into the status of a policy of Cilium's. The API server rejects the write if the object has changed since it was read,
// because the list of conditions also has conditions of other programs.
func (w *writer) setCondition(ctx context.Context, s *statement) error {
	if s.Ref.Kind == policy.Kubernetes {
		return nil // its status has no conditions
	}
	meta, conditions, err := w.read(ctx, s.Ref)
	if apierrors.IsNotFound(err) || err == nil && string(meta.UID) != s.UID {
		return nil // the object is deleted, and its row soon is too
	}
	if err != nil || s.matchesAny(conditions) {
		return err
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": meta.UID, "resourceVersion": meta.ResourceVersion},
		"status":   map[string]any{"conditions": s.among(conditions, time.Now())},
	})
	if err != nil {
		return err
	}
	if err := leaderwork.Check(w.DB, w.Leadership); err != nil {
		return err
	}
	err = w.Client.Patch(ctx, resourceOf(s.Ref), s.Ref.Namespace, s.Ref.Name, types.MergePatchType, patch, nil, "status")
	if apierrors.IsNotFound(err) || apierrors.IsInvalid(err) { // invalid: the object is older than a rule of its schema, and Events alone report it
		return nil
	}
	return err
}

// read gets the current version of an object.
func (w *writer) read(ctx context.Context, ref policy.Ref) (*metav1.ObjectMeta, []ciliumv2.PolicyCondition, error) {
	object, err := w.get(ctx, ref)
	_, meta, conditions := describe(object)
	return meta, conditions, err
}

// resourceOf returns the resource of a policy of Cilium's.
func resourceOf(ref policy.Ref) kubeapi.Resource {
	if ref.Kind == policy.Clusterwide {
		return kubeapi.CiliumClusterwidePolicies
	}
	return kubeapi.CiliumNetworkPolicies
}

// among returns a copy of a list of conditions in which the condition of the statement replaces the previous one.
func (s *statement) among(conditions []ciliumv2.PolicyCondition, now time.Time) []ciliumv2.PolicyCondition {
	c := ciliumv2.PolicyCondition{Type: ciliumv2.PolicyValid, Status: s.Valid, Reason: s.Reason, Message: s.Message,
		LastTransitionTime: now.UTC().Format(time.RFC3339)}
	out := slices.Clone(conditions)
	i := slices.IndexFunc(out, func(o ciliumv2.PolicyCondition) bool { return o.Type == c.Type })
	if i < 0 {
		return append(out, c)
	}
	if out[i].Status == c.Status && out[i].LastTransitionTime != "" {
		c.LastTransitionTime = out[i].LastTransitionTime // the last change of the status; changes of the message do not count
	}
	out[i] = c
	return out
}

// emit creates an Event with the message of the statement.
func (w *writer) emit(ctx context.Context, s *statement) error {
	if err := leaderwork.Check(w.DB, w.Leadership); err != nil {
		return err
	}
	return w.Client.Emit(ctx, s.event(time.Now()))
}

func (s *statement) event(now time.Time) *corev1.Event {
	return kubeapi.NewWarning(kubeapi.PolicyReference(string(s.Ref.Kind), s.Ref.Namespace, s.Ref.Name, s.UID), EventReason, s.Message, now)
}
