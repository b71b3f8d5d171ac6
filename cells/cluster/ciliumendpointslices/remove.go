package ciliumendpointslices

import (
	"context"
	"fmt"
	"time"

	"github.com/cilium/hive/cell"
	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/leaderwork"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

const (
	// graceTime is the time between the removal of CompleteSlice, after which agents list CiliumEndpoints, and the removal of the other slices.
	graceTime  = 5 * time.Minute
	removeRate = 10 // slices per second
	pageSize   = 500
)

// remover deletes the slices that were written while the option was on.
type remover struct{ params }

func (r *remover) run(ctx context.Context, health cell.Health) error {
	err := leaderwork.Run(ctx, r.DB, r.Leadership,
		func(leading context.Context) error { return r.lead(leading, health) },
		func() error {
			health.OK("another replica leads")
			return nil
		})
	if err != nil {
		health.Degraded("remove CiliumEndpointSlices", err)
	}
	return err
}

// lead deletes all slices once, and then waits until this replica no longer leads.
func (r *remover) lead(ctx context.Context, health cell.Health) error {
	left, err := r.list(ctx)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		if err := leaderwork.Check(r.DB, r.Leadership); err != nil {
			return err
		}
		if err := r.deleteCompleteSlice(ctx); err != nil {
			return err
		}
		health.OK(fmt.Sprintf("%d slices will be removed after agents have switched to CiliumEndpoints", len(left)))
		if err := watchdog.Sleep(ctx, graceTime); err != nil {
			return err
		}
		if err := r.removeAll(ctx); err != nil {
			return err
		}
	}
	health.OK("no slices are written: --enable-cilium-endpoint-slice is off")
	watchdog.Idle(ctx) // no further work
	<-ctx.Done()
	return ctx.Err()
}

func (r *remover) removeAll(ctx context.Context) error {
	left, err := r.list(ctx)
	if err != nil {
		return err
	}
	limiter := rate.NewLimiter(removeRate, 1)
	for _, name := range left {
		watchdog.Idle(ctx)
		if err := limiter.Wait(ctx); err != nil {
			return err
		}
		watchdog.Busy(ctx)
		if err := leaderwork.Check(r.DB, r.Leadership); err != nil {
			return err
		}
		if err := r.Client.Delete(ctx, kubeapi.CiliumEndpointSlices, "", name, nil); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// list returns the names of the slices with the label of Waggle. It returns none without a definition of the resource or without the permission to list it.
func (r *remover) list(ctx context.Context) (names []string, err error) {
	options := metav1.ListOptions{Limit: pageSize, LabelSelector: labels.Set{ciliumv2.ManagedByLabel: ciliumv2.ManagedByUs}.String()}
	for {
		var page metav1.PartialObjectMetadataList
		watchdog.Busy(ctx) // each page is a request
		err := r.Client.List(ctx, kubeapi.CiliumEndpointSlices.MetadataOnly(), "", options, &page)
		if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		for i := range page.Items {
			names = append(names, page.Items[i].Name)
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return names, nil
		}
	}
}
