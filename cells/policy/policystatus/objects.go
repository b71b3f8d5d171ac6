package policystatus

import (
	"context"
	"errors"
	"fmt"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/leaderwork"
)

// equaler is a row that can be compared.
type equaler[R any] interface{ Equal(other R) bool }

// objectFollower fills a table with the objects of one resource to which policies may refer, while this replica leads. The first list of each lead initializes
// the table.
type objectFollower[R equaler[R]] struct {
	params
	table    statedb.RWTable[R]
	resource kubeapi.Resource
	read     func(runtime.Object) (R, error)
	listed   func(statedb.WriteTxn)
}

func newObjectFollower[R equaler[R]](p params, table statedb.RWTable[R], resource kubeapi.Resource, read func(runtime.Object) (R, error)) *objectFollower[R] {
	txn := p.DB.WriteTxn(table)
	defer txn.Commit()
	f := &objectFollower[R]{params: p, table: table, resource: resource, read: read}
	f.listed = f.table.RegisterInitializer(txn, f.initializer())
	return f
}

func (f *objectFollower[R]) initializer() string { return "follow-" + f.resource.Plural }

func (f *objectFollower[R]) run(ctx context.Context, health cell.Health) error {
	objects := kubeapi.Follower[R]{Client: f.Client, Resource: f.resource, Read: f.read, Apply: f.apply,
		Replace: func(rows []R) error {
			health.OK(fmt.Sprintf("%d objects", len(rows)))
			return f.replace(rows)
		}}
	if leaderwork.Check(f.DB, f.Leadership) != nil { // the lead was lost between two attempts
		f.forget()
	}
	err := leaderwork.Run(ctx, f.DB, f.Leadership, objects.Run, func() error {
		f.forget()
		return nil
	})
	if apierrors.IsNotFound(err) { // the definition is not installed, so no objects exist
		err = errors.Join(err, f.replace(nil))
	}
	if err != nil {
		health.Degraded("follow "+f.resource.String(), err)
	}
	return err
}

// forget resets the table to its initial state, because objects may change while another replica leads.
func (f *objectFollower[R]) forget() {
	txn := f.DB.WriteTxn(f.table)
	defer txn.Abort()
	if listed, _ := f.table.Initialized(txn); !listed || f.table.DeleteAll(txn) != nil {
		return
	}
	f.listed = f.table.RegisterInitializer(txn, f.initializer())
	txn.Commit()
}

// apply changes one row, unless the new row is equal.
func (f *objectFollower[R]) apply(change watch.EventType, row R) (err error) {
	txn := f.DB.WriteTxn(f.table)
	defer txn.Abort()
	if change == watch.Deleted {
		_, _, err = f.table.Delete(txn, row)
	} else if old, found, failed := f.table.Insert(txn, row); failed != nil {
		err = failed
	} else if found && old.Equal(row) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("write an object of %s: %w", f.resource, err)
	}
	txn.Commit()
	return nil
}

func (f *objectFollower[R]) replace(rows []R) error {
	txn := f.DB.WriteTxn(f.table)
	defer txn.Abort()
	if err := f.table.DeleteAll(txn); err != nil {
		return fmt.Errorf("delete the previous objects of %s: %w", f.resource, err)
	}
	for _, row := range rows {
		if _, _, err := f.table.Insert(txn, row); err != nil {
			return fmt.Errorf("write an object of %s: %w", f.resource, err)
		}
	}
	f.listed(txn)
	txn.Commit()
	return nil
}
