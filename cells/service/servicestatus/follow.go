package servicestatus

import (
	"context"
	"fmt"
	"strings"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/waggle-net/waggle/pkg/kubernetes/k8sobjects"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/leaderwork"
	"github.com/waggle-net/waggle/pkg/rows"
	"github.com/waggle-net/waggle/pkg/serviceannotations"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// follower makes statements about Services while this replica leads.
type follower struct{ params }

func (f *follower) run(ctx context.Context, health cell.Health) error {
	err := leaderwork.Run(ctx, f.DB, f.Leadership,
		func(leading context.Context) error { return f.lead(leading, health) },
		func() error {
			health.OK("another replica leads")
			return f.replace(nil)
		})
	if err != nil {
		health.Degraded("follow "+kubeapi.Services.String(), err)
	}
	return err
}

// lead makes statements until ctx ends or a request fails.
func (f *follower) lead(ctx context.Context, health cell.Health) error {
	objects := kubeapi.Follower[*statement]{Client: f.Client, Resource: kubeapi.Services, Read: f.read, Apply: f.apply,
		Replace: func(rows []*statement) error {
			if err := f.replace(rows); err != nil {
				return err
			}
			health.OK(fmt.Sprintf("%d Services", len(rows)))
			return nil
		}}
	return objects.Run(ctx)
}

// read makes the statement about a Service. It has no message when all annotations have an effect, or when no node serves the Service.
func (f *follower) read(object runtime.Object) (*statement, error) {
	o, is := object.(*corev1.Service)
	if !is {
		return nil, fmt.Errorf("read a Service: the API server sent an object of type %T", object)
	}
	s := &statement{Namespace: o.Namespace, Name: o.Name, UID: string(o.UID), Status: reconciler.StatusPending()}
	row, err := k8sobjects.FromServer(object, "")
	if service, is := row.(*k8s.Service); is && err == nil && service.ServedBy(f.Config.ProxyName) {
		wanted := serviceannotations.Parse(service.Annotations)
		s.Message = strings.Join(wanted.Problems, "; ")
	}
	return s, nil
}

// apply changes one row.
func (f *follower) apply(change watch.EventType, s *statement) error {
	txn := f.DB.WriteTxn(f.Table)
	defer txn.Abort()
	var err error
	if change == watch.Deleted {
		_, _, err = f.Table.Delete(txn, s)
	} else {
		err = f.put(txn, s)
	}
	if err != nil {
		return fmt.Errorf("write the message about Service %s: %w", s.key(), err)
	}
	txn.Commit()
	return nil
}

// put writes the message about a Service if it has changed.
func (f *follower) put(txn statedb.WriteTxn, s *statement) (err error) {
	old, _, found := f.Table.Get(txn, nameIndex.Query(s.key()))
	switch {
	case found && same(old, s):
	case s.Message != "":
		_, _, err = f.Table.Insert(txn, s)
	case found:
		_, _, err = f.Table.Delete(txn, s)
	}
	return err
}

// same reports whether two statements about a Service are equal.
func same(a, b *statement) bool { return a.UID == b.UID && a.Message == b.Message }

// replace sets the rows to a list.
func (f *follower) replace(listed []*statement) error {
	want := make(map[string]*statement, len(listed))
	for _, s := range listed {
		if s.Message != "" {
			want[s.key()] = s
		}
	}
	txn := f.DB.WriteTxn(f.Table)
	defer txn.Abort()
	if err := rows.Replace(txn, f.Table, f.Table.All(txn), want, (*statement).key, same); err != nil {
		return err
	}
	txn.Commit()
	return nil
}
