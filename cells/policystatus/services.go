package policystatus

import (
	"context"
	"fmt"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/waggle-net/waggle/pkg/changes"
	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/k8sobjects"
	"github.com/waggle-net/waggle/pkg/kubeapi"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/policyqueue"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

func newServiceFollower(p params) *objectFollower[*k8s.Service] {
	return newObjectFollower(p, p.Services, kubeapi.Services, readService)
}

// readService reads what policies depend on. A Service that agents cannot read has no type here: for them it does not exist.
func readService(object runtime.Object) (*k8s.Service, error) {
	named, ok := object.(interface {
		GetName() string
		GetNamespace() string
	})
	if !ok {
		return nil, fmt.Errorf("read a Service: the API server sent an object of type %T", object)
	}
	row := &k8s.Service{Namespace: named.GetNamespace(), Name: named.GetName()}
	if read, err := k8sobjects.FromServer(object, ""); err == nil {
		if service, ok := read.(*k8s.Service); ok {
			row.Type, row.Selects = service.Type, service.Selects
		}
	}
	return row, nil
}

// findServices finds the Services of a snapshot.
func (p *params) findServices(txn statedb.ReadTxn) func(policy.ServiceName) policy.Service {
	return func(name policy.ServiceName) policy.Service {
		row, _, found := p.Services.Get(txn, serviceIndex.Query(name.String()))
		if !found || row.Type == "" {
			return policy.Service{}
		}
		return policy.ServiceOf(row)
	}
}

// Text of policies, in bytes, that one round parses: the owner of a Service may change it many times a second. Each policy counts for policyBytes more.
const (
	servicePortion = 256 << 10
	policyBytes    = 256
)

// serviceJudge makes the statements about policies that refer to Services, from the objects in the rows: for a new row, and when a Service changes.
type serviceJudge struct {
	params
	queue policyqueue.Queue // policies whose statements must be made
}

func (j *serviceJudge) run(ctx context.Context, health cell.Health) error {
	txn := j.DB.WriteTxn(j.Services)
	feed, err := changes.Follow(txn, j.Services)
	txn.Commit()
	if err != nil {
		return fmt.Errorf("follow Services: %w", err)
	}
	defer feed.Close()
	for {
		txn, changed := j.DB.ReadTxn(), statedb.NewWatchSet()
		j.find(txn, feed, changed)
		if err := j.judge(ctx, txn); err != nil {
			health.Degraded("write statements about policies that refer to Services", err)
			return err
		}
		health.OK(fmt.Sprintf("%d policies must be parsed because of changed Services", j.queue.Len()))
		if j.queue.Len() > 0 {
			err = heartbeat.Sleep(ctx, betweenLists)
		} else {
			heartbeat.Idle(ctx)
			_, err = changed.Wait(ctx, 0)
		}
		if err != nil {
			return nil // stopping
		}
		heartbeat.Busy(ctx)
	}
}

// find queues policies that refer to changed Services, and, when Services are known, policies without a statement.
func (j *serviceJudge) find(txn statedb.ReadTxn, feed *changes.Feed[*k8s.Service], changed *statedb.WatchSet) {
	for _, change := range feed.UpTo(txn, changed) {
		for row := range j.Table.List(txn, byService.Query(change.Object.Key())) {
			j.queue.Add(row.Ref)
		}
	}
	rows, more := j.Table.ListWatch(txn, byService.Query(withoutStatement))
	changed.Add(more)
	listed, more := j.Services.Initialized(txn)
	if !listed {
		changed.Add(more)
		return
	}
	for row := range rows {
		j.queue.Add(row.Ref)
	}
}

// judge makes a portion of the statements, of one snapshot. A row that has changed since then is queued again by the change.
func (j *serviceJudge) judge(ctx context.Context, txn statedb.ReadTxn) error {
	if listed, _ := j.Services.Initialized(txn); !listed {
		return nil
	}
	find := func(ref policy.Ref) *statement {
		row, _, found := j.Table.Get(txn, refIndex.Query(ref.String()))
		if !found || row.object == nil {
			return nil
		}
		return row
	}
	size := func(ref policy.Ref) int {
		if row := find(ref); row != nil {
			return len(row.object.Spec) + len(row.object.Specs) + policyBytes
		}
		return 0
	}
	for _, ref := range j.queue.Take(servicePortion, size) {
		heartbeat.Busy(ctx)
		old := find(ref)
		if old == nil {
			continue
		}
		row := old.clone()
		env := j.environment(row.known)
		env.Services = j.findServices(txn)
		row.tell(policy.FromCilium(row.object, env))
		row.settle()
		if row.equal(old) {
			continue
		}
		if err := j.replace(old, row); err != nil {
			return err
		}
	}
	return nil
}

// replace writes a statement in place of another one, unless that was replaced or deleted meanwhile.
func (j *serviceJudge) replace(old, row *statement) error {
	txn := j.DB.WriteTxn(j.Table)
	defer txn.Abort()
	if is, _, found := j.Table.Get(txn, refIndex.Query(old.Ref.String())); !found || is.object != old.object {
		return nil
	}
	if _, _, err := j.Table.Insert(txn, row); err != nil {
		return fmt.Errorf("note what is to be said of %s: %w", row.Ref, err)
	}
	txn.Commit()
	return nil
}
