package identityallocator

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/cilium/statedb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
)

// mirror copies the server's objects to cilium-identities, like the cell k8s-tables. The table is not initialized at first; run starts the copying, and the
// first list initializes the table. It stops when the test ends.
func mirror(t testing.TB, server *kubetest.Server, db *statedb.DB, table statedb.RWTable[*cilium.Identity]) (run func()) {
	t.Helper()
	txn := db.WriteTxn(table)
	done := table.RegisterInitializer(txn, "mirror")
	txn.Commit()
	lw := server.Client(t).ListWatch(kubeapi.CiliumIdentities, "", nil)
	return func() {
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		t.Cleanup(func() { cancel(); <-ended })
		go func() {
			defer close(ended)
			for ctx.Err() == nil {
				follow(ctx, lw, db, table, done)
				select {
				case <-ctx.Done():
				case <-time.After(20 * time.Millisecond): // the server is unavailable
				}
			}
		}()
	}
}

func follow(ctx context.Context, lw *cache.ListWatch, db *statedb.DB, table statedb.RWTable[*cilium.Identity], done func(statedb.WriteTxn)) {
	list, err := lw.ListWithContext(ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	all := list.(*ciliumv2.CiliumIdentityList)
	txn := db.WriteTxn(table)
	_ = table.DeleteAll(txn)
	for i := range all.Items {
		_, _, _ = table.Insert(txn, rowOf(&all.Items[i]))
	}
	done(txn)
	txn.Commit()
	w, err := lw.WatchWithContext(ctx, metav1.ListOptions{ResourceVersion: all.ResourceVersion})
	if err != nil {
		return
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case event, alive := <-w.ResultChan():
			if !alive || !apply(db, table, event.Type, event.Object) {
				return
			}
		}
	}
}

func apply(db *statedb.DB, table statedb.RWTable[*cilium.Identity], kind watch.EventType, o runtime.Object) bool {
	object, ok := o.(*ciliumv2.CiliumIdentity)
	if !ok {
		return false
	}
	txn := db.WriteTxn(table)
	defer txn.Commit()
	if kind == watch.Deleted {
		_, _, _ = table.Delete(txn, rowOf(object))
		return true
	}
	_, _, _ = table.Insert(txn, rowOf(object))
	return true
}

func rowOf(o *ciliumv2.CiliumIdentity) *cilium.Identity {
	id, _ := strconv.ParseUint(o.Name, 10, 32)
	return &cilium.Identity{ID: uint32(id), UID: string(o.UID), Labels: o.SecurityLabels}
}
