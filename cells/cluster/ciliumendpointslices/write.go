package ciliumendpointslices

import (
	"context"
	"errors"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/leaderwork"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// errDropped is returned when the API server does not store entries completely.
var errDropped = errors.New("the API server drops the field waggle of CiliumEndpointSlices: another program installed their definition; " +
	"run: waggle install --only crds | kubectl apply -f -")

const (
	writeRetryMin = time.Second
	writeRetryMax = time.Minute
)

// write makes one write after the other until ctx ends. A failed write is retried later and does not delay other slices. A conflict is not a failure.
func (t *term) write(ctx context.Context) error {
	for {
		watchdog.Busy(ctx)
		op, completes, wait := t.next()
		if op == nil && !completes {
			if err := t.idle(ctx, wait); err != nil {
				return err
			}
			continue
		}
		if err := leaderwork.Check(t.DB, t.Leadership); err != nil {
			return err
		}
		var err error
		if completes {
			err = t.createCompleteSlice(ctx)
		} else {
			err = t.do(ctx, op)
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			t.failed(op, err)
		}
	}
}

// failed schedules the retry of a write; without op, of the write of CompleteSlice.
func (t *term) failed(op *operation, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f, again := &t.lastFailure, func() {}
	if op != nil {
		f, again = t.plan.failed(op.slice), func() { t.plan.mark(op.slice) }
		if errors.Is(err, errDropped) {
			t.plan.unwritten[op.slice] = true
		}
	}
	f.err, f.delay, f.waits = err, min(max(2*f.delay, writeRetryMin), writeRetryMax), true
	time.AfterFunc(f.delay, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		f.waits = false
		again()
		t.awake()
	})
}

// next returns the next write: op, or completes for the creation of CompleteSlice once all pods of the first lists are in slices. Without a write it returns
// the time until one may be due; 0 means until the next change. It plans nothing while the rate limit allows no write, so that the next write contains all
// changes until then.
func (t *term) next() (op *operation, completes bool, wait time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.plan.begun {
		return nil, false, 0
	}
	if l := t.Settings.limit(len(t.plan.nodes)); rate.Limit(l.Limit) != t.limiter.Limit() || l.Burst != t.limiter.Burst() {
		t.limiter.SetLimit(rate.Limit(l.Limit))
		t.limiter.SetBurst(l.Burst)
	}
	mayComplete := !t.complete && !t.lastFailure.waits && !time.Now().Before(t.calm)
	completes = mayComplete && len(t.plan.unwritten) == 0
	if missing := 1 - t.limiter.Tokens(); missing > 0 && (len(t.plan.queue)+len(t.plan.last) > 0 || completes) {
		return nil, false, time.Duration(missing/float64(t.limiter.Limit())*float64(time.Second)) + time.Millisecond
	}
	if !completes {
		op, wait = t.plan.next()
		completes = op == nil && mayComplete && len(t.plan.unwritten) == 0
	}
	if completes || op != nil {
		t.limiter.Reserve() // a token is available
	}
	return op, completes, wait
}

// idle waits for the time limit, or for a change if limit is 0.
func (t *term) idle(ctx context.Context, limit time.Duration) error {
	watchdog.Idle(ctx) // the caller calls Busy
	var over <-chan time.Time
	if limit > 0 {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		over = timer.C
	}
	wake := t.wake
	if limit > 0 {
		wake = nil // nothing may be written earlier
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-over:
	case <-wake:
	}
	return nil
}

// do makes one write.
func (t *term) do(ctx context.Context, op *operation) error {
	var made ciliumv2.CiliumEndpointSlice
	var err error
	switch {
	case op.object == nil:
		uid := types.UID(op.have.uid)
		err = t.Client.Delete(ctx, kubeapi.CiliumEndpointSlices, "", op.have.name, &metav1.Preconditions{UID: &uid, ResourceVersion: &op.have.version})
	case op.have == nil:
		describe(op.object)
		err = t.Client.Create(ctx, kubeapi.CiliumEndpointSlices, "", op.object, &made)
	default:
		describe(op.object)
		op.object.UID, op.object.ResourceVersion = types.UID(op.have.uid), op.have.version
		err = t.Client.Update(ctx, kubeapi.CiliumEndpointSlices, "", op.object, &made)
	}
	switch {
	case op.object == nil && apierrors.IsNotFound(err):
	case apierrors.IsConflict(err) || apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err):
		return t.refresh(ctx, op)
	case err != nil:
		return err
	case op.object != nil && (len(made.Endpoints) == 0 || made.Endpoints[0].Origin == nil):
		return errors.Join(errDropped, t.deleteCompleteSlice(ctx))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if op.object == nil {
		t.plan.done(op, nil)
	} else {
		t.plan.done(op, look(&made))
	}
	return nil
}

// describe sets the type and the label of a slice.
func describe(o *ciliumv2.CiliumEndpointSlice) {
	o.TypeMeta = metav1.TypeMeta{APIVersion: ciliumv2.SliceGroupVersion.String(), Kind: "CiliumEndpointSlice"}
	o.Labels = map[string]string{ciliumv2.ManagedByLabel: ciliumv2.ManagedByUs}
}

// refresh reads a slice whose known state is outdated, and queues it.
func (t *term) refresh(ctx context.Context, op *operation) error {
	var found ciliumv2.CiliumEndpointSlice
	err := t.Client.Get(ctx, kubeapi.CiliumEndpointSlices, "", op.slice.name, &found)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case err != nil:
		t.plan.gone(op.slice.name, "")
		t.plan.mark(op.slice)
	case isOurs(&found):
		if op.slice.have == op.have { // rejected by the server. Its version is higher than found's after a restore of etcd.
			op.slice.have = nil
		}
		t.plan.mark(op.slice)
		t.plan.see(look(&found))
	default:
		op.slice.have = nil
		t.plan.rename(op.slice)
	}
	return nil
}

// createCompleteSlice creates CompleteSlice, so that agents read slices.
func (t *term) createCompleteSlice(ctx context.Context) error {
	o := &ciliumv2.CiliumEndpointSlice{Endpoints: []ciliumv2.SlicedEndpoint{}}
	o.Name = ciliumv2.CompleteSlice
	describe(o)
	err := t.Client.Create(ctx, kubeapi.CiliumEndpointSlices, "", o, nil)
	if apierrors.IsAlreadyExists(err) {
		err = t.Client.Get(ctx, kubeapi.CiliumEndpointSlices, "", o.Name, o)
		if err == nil && !isOurs(o) { // agents ignore it; the next attempt creates another one
			return t.deleteCompleteSlice(ctx)
		}
	}
	if err != nil {
		return err
	}
	t.Log.Info("CiliumEndpointSlices are complete")
	t.mu.Lock()
	defer t.mu.Unlock()
	t.complete, t.lastFailure = true, failure{}
	return nil
}

// deleteCompleteSlice deletes CompleteSlice, so that agents read CiliumEndpoints.
func (p params) deleteCompleteSlice(ctx context.Context) error {
	err := p.Client.Delete(ctx, kubeapi.CiliumEndpointSlices, "", ciliumv2.CompleteSlice, nil)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
