package ciliumendpoints

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

const (
	requestTimeout = 5 * time.Second // per request; limits the delay of a batch by a slow server
	workers        = 8               // concurrent requests
)

// ops writes objects to the API server.
type ops struct {
	client    *kubeapi.Client
	node      string // name of this node
	limiter   *rate.Limiter
	published statedb.Table[*cilium.Endpoint]
	local     statedb.Table[*localnode.LocalNode]
	failed    chan struct{} // receives a value when a prune failed
}

// UpdateBatch implements reconciler.BatchOperations.
func (o *ops) UpdateBatch(ctx context.Context, txn statedb.ReadTxn, batch []reconciler.BatchEntry[*object]) {
	each(batch, func(e *reconciler.BatchEntry[*object]) error { return o.Update(ctx, txn, e.Revision, e.Object) })
}

// DeleteBatch implements reconciler.BatchOperations.
func (o *ops) DeleteBatch(ctx context.Context, txn statedb.ReadTxn, batch []reconciler.BatchEntry[*object]) {
	each(batch, func(e *reconciler.BatchEntry[*object]) error { return o.Delete(ctx, txn, e.Revision, e.Object) })
}

func each(batch []reconciler.BatchEntry[*object], do func(*reconciler.BatchEntry[*object]) error) {
	var group errgroup.Group
	group.SetLimit(workers)
	for i := range batch {
		group.Go(func() error { batch[i].Result = do(&batch[i]); return nil })
	}
	_ = group.Wait() // the results are in the entries
}

// write sends one request within the rate limit and the timeout.
func (o *ops) write(ctx context.Context, do func(context.Context) error) error {
	if err := o.limiter.Wait(ctx); err != nil {
		return err
	}
	watchdog.Busy(ctx) // each request may take a long time
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return do(ctx)
}

// Update implements reconciler.Operations. It uses cilium-endpoints only for rows without a UID, because that table lags behind this cell's own writes. So a
// restart needs no request for unchanged objects.
func (o *ops) Update(ctx context.Context, txn statedb.ReadTxn, _ statedb.Revision, row *object) error {
	shown, _, found := o.published.Get(txn, cilium.EndpointByName(row.Key()))
	if row.UID == "" && found && shown.Written() == ciliumv2.Digest(build(row, o.node)) {
		row.UID = shown.UID()
		return nil
	}
	if row.UID == "" && !found {
		err := o.create(ctx, row)
		if !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	have, err := o.get(ctx, row)
	if apierrors.IsNotFound(err) {
		return o.create(ctx, row)
	}
	if err != nil {
		return err
	}
	if owner := have.Labels[ciliumv2.NodeLabel]; owner != "" && owner != o.node {
		return fmt.Errorf("write CiliumEndpoint %s: it belongs to node %s, which has to delete it first", row.Key(), owner)
	}
	if podOf(have) != row.PodUID { // the object of a previous pod with the same name
		if err := o.remove(ctx, row, have.UID); err != nil {
			return err
		}
		return o.create(ctx, row)
	}
	return o.patch(ctx, row, have)
}

func (o *ops) create(ctx context.Context, row *object) error {
	var made ciliumv2.CiliumEndpoint
	err := o.write(ctx, func(ctx context.Context) error {
		return o.client.Create(ctx, kubeapi.CiliumEndpoints, row.Namespace, build(row, o.node), &made)
	})
	if err == nil {
		row.UID = string(made.UID)
	}
	return err
}

func (o *ops) get(ctx context.Context, row *object) (*ciliumv2.CiliumEndpoint, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	watchdog.Busy(ctx)
	have := &ciliumv2.CiliumEndpoint{}
	return have, o.client.Get(ctx, kubeapi.CiliumEndpoints, row.Namespace, row.Name, have)
}

// patch changes the fields that this cell owns, and leaves the others unchanged.
func (o *ops) patch(ctx context.Context, row *object, have *ciliumv2.CiliumEndpoint) error {
	row.UID = string(have.UID)
	want := build(row, o.node)
	if reflect.DeepEqual(have.Status, want.Status) && contains(have.Labels, want.Labels) {
		return nil
	}
	body, err := mergePatch(want, have.UID)
	if err != nil {
		return err
	}
	return o.write(ctx, func(ctx context.Context) error {
		return o.client.Patch(ctx, kubeapi.CiliumEndpoints, row.Namespace, row.Name, types.MergePatchType, body, nil)
	})
}

// mergePatch returns a patch of the fields that this cell owns, for the object with a UID. Fields without a value, such as a missing identity, are removed.
func mergePatch(want *ciliumv2.CiliumEndpoint, uid types.UID) ([]byte, error) {
	text, err := json.Marshal(want.Status)
	if err != nil {
		return nil, err
	}
	status := map[string]any{}
	if err := json.Unmarshal(text, &status); err != nil {
		return nil, err
	}
	for _, key := range []string{"identity", "service-account", "named-ports"} {
		if _, found := status[key]; !found {
			status[key] = nil
		}
	}
	return json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": uid, "labels": want.Labels},
		"status":   status,
	})
}

func contains(have, want map[string]string) bool {
	for k, v := range want {
		if have[k] != v {
			return false
		}
	}
	return true
}

// Delete implements reconciler.Operations. It does not delete an object that this cell has not written.
func (o *ops) Delete(ctx context.Context, _ statedb.ReadTxn, _ statedb.Revision, row *object) error {
	uid := types.UID(row.UID)
	if uid == "" {
		have, err := o.get(ctx, row)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if have.Labels[ciliumv2.NodeLabel] != o.node || podOf(have) != row.PodUID {
			return nil
		}
		uid = have.UID
	}
	return o.remove(ctx, row, uid)
}

// remove deletes the object with a UID. A missing object, or one with another UID, is not an error.
func (o *ops) remove(ctx context.Context, row *object, uid types.UID) error {
	err := o.write(ctx, func(ctx context.Context) error {
		return o.client.Delete(ctx, kubeapi.CiliumEndpoints, row.Namespace, row.Name, &metav1.Preconditions{UID: &uid})
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// Prune implements reconciler.Operations. Rows of cilium-endpoints with an address of this node are candidates; the label of the object decides.
func (o *ops) Prune(ctx context.Context, txn statedb.ReadTxn, objects iter.Seq2[*object, statedb.Revision]) error {
	wanted := map[string]bool{}
	for row := range objects {
		wanted[row.Key()] = true
	}
	var errs []error
	for row := range o.published.All(txn) {
		if wanted[row.Key()] || !o.here(txn, row) {
			continue
		}
		left := &object{Namespace: row.Namespace(), Name: row.Name()}
		have, err := o.get(ctx, left)
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			errs = append(errs, err)
		case have.Labels[ciliumv2.NodeLabel] == o.node:
			errs = append(errs, o.remove(ctx, left, have.UID))
		}
	}
	err := errors.Join(errs...)
	if err != nil {
		select {
		case o.failed <- struct{}{}:
		default: // a repetition is already requested
		}
	}
	return err
}

// here reports whether an object's node address is an address of this node.
func (o *ops) here(txn statedb.ReadTxn, row *cilium.Endpoint) bool {
	for n := range o.local.All(txn) {
		node := row.Node()
		return node.IsValid() && (node == n.IPv4.NodeIP || node == n.IPv6.NodeIP)
	}
	return false
}

// repeat repeats a failed prune, because the reconciler does not.
func (o *ops) repeat(ctx context.Context, prune func()) error {
	watchdog.Idle(ctx) // it only requests prunes
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-o.failed:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(maxRetry):
			prune()
		}
	}
}
