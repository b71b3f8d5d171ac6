package policystatus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/kubeapi"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/tables/leadership"
)

// follower makes statements about the objects of one resource while this replica leads.
type follower struct {
	params
	resource kubeapi.Resource
}

const (
	pageSize = 500
	between  = time.Second // shortest time between the beginnings of two watches
)

// kinds tells which rows are of a resource.
var kinds = map[string]policy.Kind{
	kubeapi.NetworkPolicies.Plural:           policy.Kubernetes,
	kubeapi.CiliumNetworkPolicies.Plural:     policy.Cilium,
	kubeapi.CiliumClusterwidePolicies.Plural: policy.Clusterwide,
}

// run works whenever this replica leads.
func (f *follower) run(ctx context.Context, health cell.Health) error {
	err := leadership.Lead(ctx, f.DB, f.Leadership,
		func(leading context.Context) error { return f.lead(leading, health) },
		func() error {
			health.OK("another replica leads")
			return f.replace(nil)
		})
	if err != nil {
		health.Degraded("follow "+f.resource.String(), err)
	}
	return err
}

// errListAgain says that a watch cannot go on where it ended.
var errListAgain = errors.New("changes are lost")

// lead lists and follows the objects until ctx ends or a request fails.
func (f *follower) lead(ctx context.Context, health cell.Health) error {
	for {
		rows, version, err := f.list(ctx)
		if err != nil {
			return err
		}
		if err := f.replace(rows); err != nil {
			return err
		}
		health.OK(fmt.Sprintf("%d objects", len(rows)))
		if err := f.follow(ctx, version); !errors.Is(err, errListAgain) {
			return err
		}
	}
}

// list judges all objects of one moment, a page at a time.
func (f *follower) list(ctx context.Context) (rows []*statement, version string, err error) {
	options := metav1.ListOptions{Limit: pageSize}
	env := f.environment()
	for {
		page := f.resource.NewList()
		heartbeat.Busy(ctx) // each page is a request
		if err := f.Client.List(ctx, f.resource, "", options, page); err != nil {
			return nil, "", err
		}
		if err := meta.EachListItem(page, func(object runtime.Object) error {
			row, err := judge(object, env)
			rows = append(rows, row)
			return err
		}); err != nil {
			return nil, "", err
		}
		list, err := meta.ListAccessor(page)
		if err != nil {
			return nil, "", err
		}
		version = list.GetResourceVersion()
		if options.Continue = list.GetContinue(); options.Continue == "" {
			return rows, version, nil
		}
	}
}

// environment is that of agents as far as problems go: those depend on which labels identities have, and on clusters having a
// name, but not on which.
func (f *follower) environment() policy.Environment {
	return policy.Environment{Keeps: f.Keeps, Cluster: "any", AllowL7Ports: f.L7Mode == policy.AllowL7Ports}
}

// follow applies changes from a version on, in one watch after the other, until one cannot go on.
func (f *follower) follow(ctx context.Context, version string) error {
	for {
		began := time.Now()
		w, err := f.Client.Watch(ctx, f.resource, "", metav1.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true})
		if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			return errListAgain
		}
		if err != nil {
			return err
		}
		version, err = f.consume(ctx, w, version)
		w.Stop()
		if err != nil {
			return err
		}
		select {
		case <-time.After(between - time.Since(began)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// consume applies the events of one watch until it ends, and returns the version of the last.
func (f *follower) consume(ctx context.Context, w watch.Interface, version string) (last string, err error) {
	for {
		heartbeat.Idle(ctx)
		select {
		case <-ctx.Done():
			return version, ctx.Err()
		case event, open := <-w.ResultChan():
			heartbeat.Busy(ctx)
			if !open {
				return version, nil
			}
			if event.Type == watch.Error {
				return version, errListAgain
			}
			object, err := meta.Accessor(event.Object)
			if err != nil {
				return version, fmt.Errorf("read an event about %s: %w", f.resource, err)
			}
			version = object.GetResourceVersion()
			if err := f.apply(event); err != nil {
				return version, err
			}
		}
	}
}

// apply changes one row.
func (f *follower) apply(event watch.Event) error {
	if event.Type == watch.Bookmark {
		return nil
	}
	row, err := judge(event.Object, f.environment())
	if err != nil {
		return err
	}
	txn := f.DB.WriteTxn(f.Table)
	defer txn.Abort()
	if event.Type == watch.Deleted {
		_, _, err = f.Table.Delete(txn, row)
	} else {
		err = f.put(txn, row)
	}
	if err != nil {
		return fmt.Errorf("note what is to be said of %s: %w", row.Ref, err)
	}
	txn.Commit()
	return nil
}

// put writes a row that says something else than the one that is there.
func (f *follower) put(txn statedb.WriteTxn, row *statement) error {
	if old, _, found := f.Table.Get(txn, refIndex.Query(row.Ref.String())); found && old.equal(row) {
		return nil
	}
	_, _, err := f.Table.Insert(txn, row)
	return err
}

// replace makes the rows of this resource what a list says.
func (f *follower) replace(rows []*statement) error {
	txn := f.DB.WriteTxn(f.Table)
	defer txn.Abort()
	listed := make(map[policy.Ref]bool, len(rows))
	var errs []error
	for _, row := range rows {
		listed[row.Ref] = true
		errs = append(errs, f.put(txn, row))
	}
	for row := range f.Table.All(txn) {
		if row.Ref.Kind == kinds[f.resource.Plural] && !listed[row.Ref] {
			_, _, err := f.Table.Delete(txn, row)
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("note what is to be said of %s: %w", f.resource, err)
	}
	txn.Commit()
	return nil
}
