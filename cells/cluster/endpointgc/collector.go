package endpointgc

import (
	"context"
	"fmt"

	"github.com/cilium/hive/cell"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/leaderwork"
	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/tables/staleobjects"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// collector deletes stale objects while this replica is the leader.
type collector struct{ params }

const pageSize = 500

// run runs rounds whenever this replica is the leader.
func (c *collector) run(ctx context.Context, health cell.Health) error {
	return leaderwork.Run(ctx, c.DB, c.Leadership,
		func(leading context.Context) error { return c.lead(leading, health) },
		func() error {
			health.OK("another replica leads")
			return c.commit(nil)
		})
}

// lead runs rounds until ctx is canceled. A failed round does not count.
func (c *collector) lead(ctx context.Context, health cell.Health) error {
	return loop.Run(ctx, c.DB, loop.Options{Interval: c.Config.Interval}, func(r *loop.Round) error {
		r.Txn = nil // the requests of a round take long
		suspects, deleted, err := c.round(ctx)
		switch {
		case ctx.Err() != nil: // the error, if any, comes from the end of ctx
		case err != nil:
			health.Degraded("scan for stale objects", err)
		default:
			health.OK(fmt.Sprintf("%d stale objects, %d deleted in the last round", suspects-deleted, deleted))
		}
		return nil
	})
}

// round lists all objects once, and deletes the objects that enough rounds in a row have found stale.
func (c *collector) round(ctx context.Context) (found, deleted int, err error) {
	w, err := c.look(ctx)
	if err != nil {
		return 0, 0, err
	}
	suspects := w.stale()
	enough := needed(len(suspects), len(w.endpoints)+len(w.ciliumNodes))
	txn, tried := c.DB.ReadTxn(), 0
	var rows []staleobjects.Object
	for _, s := range suspects {
		row := staleobjects.Object{Resource: s.resource.String(), Name: key(s.object), UID: string(s.object.UID),
			Reason: s.reason, Rounds: 1}
		if before, _, _ := c.Table.Get(txn, staleobjects.ByName(row.Key())); before.UID == row.UID {
			row.Rounds += before.Rounds
		}
		if row.Rounds >= enough && tried < mostInOneRound {
			tried++
			watchdog.Busy(ctx)
			gone, failure := c.remove(ctx, s)
			if gone {
				c.Log.Info("Deleted a stale object", "resource", row.Resource, "name", row.Name, "reason", row.Reason)
				deleted++
				continue
			}
			if failure == nil {
				continue // its Pod or Node exists after all, or the object has changed
			}
			row.Error, err = failure.Error(), failure
			if !apierrors.IsForbidden(failure) && !apierrors.IsInvalid(failure) { // for other errors the next request would fail as well
				tried = mostInOneRound
			}
		}
		rows = append(rows, row)
	}
	if failed := c.commit(rows); failed != nil {
		return 0, 0, failed
	}
	return len(suspects), deleted, err
}

// look lists the metadata of all objects, objects that may be stale first.
func (c *collector) look(ctx context.Context) (w world, err error) {
	w = world{pods: map[string]string{}, nodes: map[string]bool{}}
	for _, l := range []struct {
		resource kubeapi.Resource
		take     func(object)
	}{
		{kubeapi.CiliumEndpoints, func(o object) { w.endpoints = append(w.endpoints, o) }},
		{kubeapi.CiliumNodes, func(o object) { w.ciliumNodes = append(w.ciliumNodes, o) }},
		{kubeapi.Pods, func(o object) { w.pods[key(o)] = string(o.UID) }},
		{kubeapi.Nodes, func(o object) { w.nodes[o.Name] = true }},
	} {
		if err := c.list(ctx, l.resource.MetadataOnly(), l.take); err != nil {
			return world{}, err
		}
	}
	return w, nil
}

// list reads all pages of a consistent list. It fails if a page cannot be read.
func (c *collector) list(ctx context.Context, r kubeapi.Resource, take func(object)) error {
	options := metav1.ListOptions{Limit: pageSize}
	for {
		var page metav1.PartialObjectMetadataList
		watchdog.Busy(ctx) // each page is a request
		if err := c.Client.List(ctx, r, "", options, &page); err != nil {
			return err
		}
		for i := range page.Items {
			o := &page.Items[i]
			take(object{ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion,
				Labels: o.Labels, OwnerReferences: o.OwnerReferences}})
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return nil
		}
	}
}

// remove deletes an object after it has checked again that its Pod or Node is missing. It reports whether the object is gone. If it is not, and without an
// error, the Pod or Node exists or the object has just changed.
func (c *collector) remove(ctx context.Context, s suspect) (gone bool, err error) {
	missing, err := c.missing(ctx, s)
	if err != nil || !missing {
		return false, err
	}
	if err := leaderwork.Check(c.DB, c.Leadership); err != nil {
		return false, err
	}
	watchdog.Busy(ctx)
	only := &metav1.Preconditions{UID: &s.object.UID, ResourceVersion: &s.object.ResourceVersion}
	err = c.Client.Delete(ctx, s.resource, s.object.Namespace, s.object.Name, only)
	switch {
	case err == nil || apierrors.IsNotFound(err):
		return true, nil
	case apierrors.IsConflict(err):
		return false, nil
	}
	return false, err
}

// missing asks the API server whether the Pod or Node of a suspect is missing.
func (c *collector) missing(ctx context.Context, s suspect) (bool, error) {
	var got object
	var err error
	if s.pod {
		err = c.Client.Get(ctx, kubeapi.Pods.MetadataOnly(), s.object.Namespace, s.object.Name, &got)
	} else {
		err = c.Client.Get(ctx, kubeapi.Nodes.MetadataOnly(), "", s.node(), &got)
	}
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	owner, _ := podOwner(s.object)
	return err == nil && s.pod && owner != "" && owner != string(got.UID), err
}

// commit replaces the rows of the table. Only this cell writes the table.
func (c *collector) commit(rows []staleobjects.Object) error {
	txn := c.DB.WriteTxn(c.Table)
	defer txn.Abort()
	if err := c.Table.DeleteAll(txn); err != nil {
		return fmt.Errorf("clear stale-objects: %w", err)
	}
	for _, row := range rows {
		if _, _, err := c.Table.Insert(txn, row); err != nil {
			return fmt.Errorf("insert stale object %s: %w", row.Name, err)
		}
	}
	txn.Commit()
	return nil
}
