package identitygc

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/cilium/hive/cell"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/waggle-net/waggle/pkg/ciliumv2"
	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/kubeapi"
	"github.com/waggle-net/waggle/pkg/tables/leadership"
)

const (
	pageSize       = 500
	mostInOneRound = 500 // writes; the rest has time until the next
)

// collector does the work while this replica leads.
type collector struct {
	params
	now func() time.Time
	// rounds counts for each identity, by UID, the rounds in a row that found nobody with it. Clocks of replicas differ, and
	// jump: what a clock says is old must have been seen twice as well.
	rounds map[types.UID]int
}

func newCollector(p params) *collector {
	return &collector{params: p, now: time.Now, rounds: map[types.UID]int{}}
}

// run works whenever this replica leads.
func (c *collector) run(ctx context.Context, health cell.Health) error {
	return leadership.Lead(ctx, c.DB, c.Leadership,
		func(leading context.Context) error {
			c.lead(leading, health)
			return nil
		},
		func() error {
			clear(c.rounds)
			health.OK("another replica leads")
			return nil
		})
}

// lead makes rounds until ctx ends. One that fails counts for nothing.
func (c *collector) lead(ctx context.Context, health cell.Health) {
	for ctx.Err() == nil {
		heartbeat.Busy(ctx)
		sum, err := c.round(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			health.Degraded("look for CiliumIdentities that nobody has", err)
		case sum.blind:
			health.OK("no CiliumEndpoint has an identity: nothing is known of who has which, and nothing is deleted")
		default:
			health.OK(fmt.Sprintf("%d identities, nobody has %d of them, %d deleted in the last round", sum.all, sum.unused, sum.deleted))
		}
		heartbeat.IdleFor(ctx, c.Config.Interval)
		select {
		case <-time.After(c.Config.Interval):
		case <-ctx.Done():
		}
	}
}

// summary is what a round has seen and done.
type summary struct {
	all, unused, deleted int
	blind                bool
}

// round looks once. Identities are listed first: whoever took one before that is among the endpoints.
func (c *collector) round(ctx context.Context) (sum summary, err error) {
	identities, err := c.identities(ctx)
	if err != nil {
		return sum, err
	}
	used, err := c.used(ctx)
	if err != nil {
		return sum, err
	}
	sum.all = len(identities)
	if sum.blind = len(used) == 0; sum.blind { // they may be switched off
		return sum, nil
	}
	plan := c.plan(identities, used)
	sum.unused = len(c.rounds)
	if len(plan.remove) > 0 {
		if used, err = c.used(ctx); err != nil {
			return sum, err
		}
	}
	writes := 0
	for _, o := range plan.mark {
		if writes++; writes > mostInOneRound {
			return sum, nil
		}
		if err := c.mark(ctx, o.object, o.heartbeat); err != nil {
			return sum, err
		}
	}
	for _, o := range plan.remove {
		if used[o.Name] {
			continue
		}
		if writes++; writes > mostInOneRound {
			return sum, nil
		}
		gone, err := c.remove(ctx, o)
		if err != nil {
			return sum, err
		}
		if gone {
			c.Log.Info("Deleted a CiliumIdentity that nobody has", "identity", o.Name)
			sum.deleted++
		}
	}
	return sum, nil
}

type object = metav1.PartialObjectMetadata

// identities lists the metadata of those that agents of ours have made.
func (c *collector) identities(ctx context.Context) (list []object, err error) {
	options := metav1.ListOptions{Limit: pageSize}
	for {
		var page metav1.PartialObjectMetadataList
		heartbeat.Busy(ctx) // each page is a request
		if err := c.Client.List(ctx, kubeapi.CiliumIdentities.MetadataOnly(), "", options, &page); err != nil {
			return nil, err
		}
		for i := range page.Items {
			o := &page.Items[i]
			if o.Labels[ciliumv2.ManagedByLabel] == ciliumv2.ManagedByUs {
				list = append(list, object{ObjectMeta: metav1.ObjectMeta{Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion,
					Annotations: map[string]string{ciliumv2.HeartbeatAnnotation: o.Annotations[ciliumv2.HeartbeatAnnotation]}}})
			}
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return list, nil
		}
	}
}

// used lists the names of identities that CiliumEndpoints have.
func (c *collector) used(ctx context.Context) (map[string]bool, error) {
	used := map[string]bool{}
	options := metav1.ListOptions{Limit: pageSize}
	for {
		var page ciliumv2.CiliumEndpointList
		heartbeat.Busy(ctx)
		if err := c.Client.List(ctx, kubeapi.CiliumEndpoints, "", options, &page); err != nil {
			return nil, err
		}
		for i := range page.Items {
			if has := page.Items[i].Status.Identity; has != nil && has.ID > 0 {
				used[strconv.FormatInt(has.ID, 10)] = true
			}
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return used, nil
		}
	}
}

// mark writes the time since when nobody has an identity, or takes it away, if the object has not changed.
func (c *collector) mark(ctx context.Context, o object, heartbeatTime string) error {
	if err := leadership.Check(c.DB, c.Leadership); err != nil {
		return err
	}
	var value any
	if heartbeatTime != "" {
		value = heartbeatTime
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": o.UID, "resourceVersion": o.ResourceVersion,
		"annotations": map[string]any{ciliumv2.HeartbeatAnnotation: value}}})
	if err != nil {
		return err
	}
	heartbeat.Busy(ctx)
	err = c.Client.Patch(ctx, kubeapi.CiliumIdentities, "", o.Name, types.MergePatchType, body, nil)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // somebody has changed it: the next round looks again
	}
	return err
}

// remove deletes an identity if it is what was listed; otherwise somebody has just changed it.
func (c *collector) remove(ctx context.Context, o object) (gone bool, err error) {
	if err := leadership.Check(c.DB, c.Leadership); err != nil {
		return false, err
	}
	heartbeat.Busy(ctx)
	only := &metav1.Preconditions{UID: &o.UID, ResourceVersion: &o.ResourceVersion}
	err = c.Client.Delete(ctx, kubeapi.CiliumIdentities, "", o.Name, only)
	switch {
	case err == nil || apierrors.IsNotFound(err):
		return true, nil
	case apierrors.IsConflict(err):
		return false, nil
	}
	return false, err
}
