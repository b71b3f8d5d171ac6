package leaderelection

import (
	"context"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
)

// leaseName is the name of the Lease.
const leaseName = "waggle-cluster"

// leases has the three requests of an election. The errors are API status errors of apimachinery.
type leases interface {
	get(ctx context.Context) (*coordinationv1.Lease, error)
	create(ctx context.Context, l *coordinationv1.Lease) (*coordinationv1.Lease, error)
	update(ctx context.Context, l *coordinationv1.Lease) (*coordinationv1.Lease, error)
}

// apiLease is the Lease in the API server.
type apiLease struct {
	client    *kubeapi.Client
	namespace string
}

func (a *apiLease) get(ctx context.Context) (*coordinationv1.Lease, error) {
	out := &coordinationv1.Lease{}
	return out, a.client.Get(ctx, kubeapi.Leases, a.namespace, leaseName, out)
}

func (a *apiLease) create(ctx context.Context, l *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	out := &coordinationv1.Lease{}
	return out, a.client.Create(ctx, kubeapi.Leases, a.namespace, l, out)
}

func (a *apiLease) update(ctx context.Context, l *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	out := &coordinationv1.Lease{}
	return out, a.client.Update(ctx, kubeapi.Leases, a.namespace, l, out)
}

// taken returns old with this replica as its holder. old may be a Lease that does not exist yet.
func taken(old *coordinationv1.Lease, identity string, duration time.Duration, now time.Time) *coordinationv1.Lease {
	lease := old.DeepCopy()
	seconds, stamp := int32(duration/time.Second), metav1.NewMicroTime(now)
	lease.Name = leaseName
	lease.Spec.LeaseDurationSeconds, lease.Spec.RenewTime = &seconds, &stamp
	if holderOf(old) == identity {
		return lease
	}
	transitions := int32(0)
	if old.Spec.LeaseTransitions != nil {
		transitions = *old.Spec.LeaseTransitions
	}
	if old.ResourceVersion != "" {
		transitions++
	}
	lease.Spec.HolderIdentity, lease.Spec.AcquireTime, lease.Spec.LeaseTransitions = &identity, &stamp, &transitions
	return lease
}

// releasedFor is the remaining duration of a released Lease: time for the last request of its holder to arrive.
const releasedFor = time.Second

// released returns old without a holder.
func released(old *coordinationv1.Lease, now time.Time) *coordinationv1.Lease {
	lease := old.DeepCopy()
	noHolder, seconds, stamp := "", int32(releasedFor/time.Second), metav1.NewMicroTime(now)
	lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds, lease.Spec.RenewTime = &noHolder, &seconds, &stamp
	return lease
}

func holderOf(l *coordinationv1.Lease) string {
	if l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}

// lasts returns how long other candidates must wait after a renewal.
func lasts(l *coordinationv1.Lease) time.Duration {
	if l.Spec.LeaseDurationSeconds == nil {
		return 0
	}
	return time.Duration(*l.Spec.LeaseDurationSeconds) * time.Second
}
