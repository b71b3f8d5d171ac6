package identitygc

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/cilium/hive/cell"
	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/leaderwork"
	"github.com/waggle-net/waggle/pkg/tables/identityrounds"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

const (
	pageSize = 500
	// fresh is the maximum age of the list of CiliumEndpoints when an identity without a reference in it is deleted.
	fresh = 30 * time.Second
)

// collector scans identities while this replica leads.
type collector struct {
	params
	now     func() time.Time
	limiter *rate.Limiter // of deletions
	// unused has the findings of this replica's rounds, by UID. They are not written to the objects: that would cost a request for each identity.
	unused map[types.UID]unused
}

func newCollector(p params) *collector {
	return &collector{params: p, now: time.Now, unused: map[types.UID]unused{},
		limiter: rate.NewLimiter(rate.Limit(float64(p.Config.Limit)/p.Config.LimitInterval.Seconds()), 1)}
}

// run collects whenever this replica leads.
func (c *collector) run(ctx context.Context, health cell.Health) error {
	return leaderwork.Run(ctx, c.DB, c.Leadership,
		func(leading context.Context) error {
			c.lead(leading, health)
			return nil
		},
		func() error {
			clear(c.unused)
			health.OK("another replica leads")
			return c.note(nil)
		})
}

// lead runs rounds until ctx ends. A failed round has no effect on the findings.
func (c *collector) lead(ctx context.Context, health cell.Health) {
	var before identityrounds.Round
	for ctx.Err() == nil {
		began := c.now()
		watchdog.Busy(ctx)
		round, blind, err := c.round(ctx)
		if err == nil {
			err = c.note(&round)
		}
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			health.Degraded("scan for unused CiliumIdentities", err)
		case blind:
			health.OK("no CiliumEndpoint has an identity: the use of identities is unknown, and none is deleted")
		case round.Overdue > before.Overdue:
			health.Degraded("delete unused CiliumIdentities", fmt.Errorf("%d are overdue, %d were after the previous round, and %d were deleted: "+
				"raise --identity-gc-rate-limit", round.Overdue, before.Overdue, round.Deleted))
		default:
			health.OK(fmt.Sprintf("%d identities, %d of them unused, %d deleted in the last round", round.All, round.Unused, round.Deleted))
		}
		if err == nil {
			before = round
		}
		pause := max(c.Config.Interval-c.now().Sub(began), 0)
		watchdog.IdleFor(ctx, pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// note replaces the row of the last round; nil removes it.
func (c *collector) note(round *identityrounds.Round) error {
	txn := c.DB.WriteTxn(c.Rounds)
	defer txn.Abort()
	err := c.Rounds.DeleteAll(txn)
	if err == nil && round != nil {
		_, _, err = c.Rounds.Insert(txn, *round)
	}
	if err != nil {
		return fmt.Errorf("store the result of a round: %w", err)
	}
	txn.Commit()
	return nil
}

// round scans once and deletes overdue identities, but does not run past the start of the next round. It is blind, and deletes nothing, when no CiliumEndpoint
// has an identity.
func (c *collector) round(ctx context.Context) (round identityrounds.Round, blind bool, err error) {
	began := c.now()
	identities, err := c.identities(ctx)
	if err != nil {
		return round, false, err
	}
	used, err := c.used(ctx)
	if err != nil {
		return round, false, err
	}
	defer func() { round.Ended = c.now() }()
	round.All = len(identities)
	if len(used) == 0 { // CiliumEndpoints may be turned off
		return round, true, nil
	}
	overdue := c.overdue(identities, used)
	round.Unused = len(c.unused)
	round.Overdue = len(overdue)
	var listed time.Time // zero: not listed for a deletion yet
	for _, o := range overdue {
		watchdog.IdleFor(ctx, c.Config.LimitInterval)
		if err := c.limiter.Wait(ctx); err != nil {
			return round, false, err
		}
		watchdog.Busy(ctx)
		now := c.now()
		if now.Sub(began) >= c.Config.Interval {
			break
		}
		if listed.IsZero() || now.Sub(listed) >= fresh {
			if used, err = c.used(ctx); err != nil || len(used) == 0 {
				return round, err == nil, err
			}
			listed = now
		}
		gone := false
		if !used[o.Name] {
			if gone, err = c.remove(ctx, o); err != nil {
				return round, false, err
			}
		}
		round.Overdue--
		if gone {
			c.Log.Info("Deleted an unused CiliumIdentity", "identity", o.Name)
			round.Deleted++
		}
	}
	return round, false, nil
}

type object = metav1.PartialObjectMetadata

// identities lists the metadata of the identities that agents of this project have created.
func (c *collector) identities(ctx context.Context) (list []object, err error) {
	options := metav1.ListOptions{Limit: pageSize}
	for {
		var page metav1.PartialObjectMetadataList
		watchdog.Busy(ctx) // each page is a request
		if err := c.Client.List(ctx, kubeapi.CiliumIdentities.MetadataOnly(), "", options, &page); err != nil {
			return nil, err
		}
		for i := range page.Items {
			o := &page.Items[i]
			if o.Labels[ciliumv2.ManagedByLabel] == ciliumv2.ManagedByUs {
				list = append(list, object{ObjectMeta: metav1.ObjectMeta{Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion}})
			}
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return list, nil
		}
	}
}

// used lists the names of the identities to which CiliumEndpoints refer.
func (c *collector) used(ctx context.Context) (map[string]bool, error) {
	used := map[string]bool{}
	options := metav1.ListOptions{Limit: pageSize}
	for {
		var page ciliumv2.CiliumEndpointList
		watchdog.Busy(ctx)
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

// remove deletes an identity if it is unchanged since the list. It reports whether the identity no longer exists.
func (c *collector) remove(ctx context.Context, o object) (gone bool, err error) {
	if err := leaderwork.Check(c.DB, c.Leadership); err != nil {
		return false, err
	}
	watchdog.Busy(ctx)
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
