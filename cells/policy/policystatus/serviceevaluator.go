package policystatus

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/waggle-net/waggle/pkg/changefeed"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/policy/policyqueue"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// Bounds of the work that changed Services cause: the owner of a Service may change it many times a second, and thousands of policies may refer to it. A round
// reads policies with servicePortion bytes of rules and selectors from the API server, each of which counts for policyBytes more.
const (
	servicePortion = 256 << 10
	policyBytes    = 4 << 10
	serviceSettle  = 100 * time.Millisecond // changes within this time are handled together
)

// servicePause is the minimum time between two evaluations of one policy that changes of Services alone cause. Each may cause three requests.
type servicePause time.Duration

const betweenRestatements = servicePause(30 * time.Second)

// serviceEvaluator makes the statements about policies that refer to Services: again after a change of a Service, and for the first time if Services were not known
// or changed when the policy was read. It reads the objects again, because they are not kept.
type serviceEvaluator struct {
	params
	read  func(context.Context, policy.Ref) (runtime.Object, error)
	queue policyqueue.Queue        // policies that must be evaluated
	later map[policy.Ref]time.Time // policies that must be queued at the end of their pause
}

func newServiceEvaluator(p params) *serviceEvaluator {
	return &serviceEvaluator{params: p, read: p.get, later: map[policy.Ref]time.Time{}}
}

func (j *serviceEvaluator) run(ctx context.Context, health cell.Health) error {
	txn := j.DB.WriteTxn(j.Services)
	feed, err := changefeed.Follow(txn, j.Services)
	txn.Commit()
	if err != nil {
		return fmt.Errorf("follow Services: %w", err)
	}
	defer feed.Close()
	for {
		txn, changed := j.DB.ReadTxn(), statedb.NewWatchSet()
		j.find(txn, feed, changed, time.Now())
		next := j.wake(time.Now())
		known := j.knownServices(txn)
		err := j.evaluatePortion(ctx, txn, known)
		switch {
		case ctx.Err() != nil:
			return nil // stopping
		case err != nil:
			health.Degraded("make statements about policies that refer to Services", err)
		default:
			health.OK(fmt.Sprintf("%d policies must be evaluated because of changed Services, and %d later", j.queue.Len(), len(j.later)))
		}
		if known != nil && j.queue.Len() > 0 {
			err = watchdog.Sleep(ctx, betweenLists)
		} else {
			err = await(ctx, changed, next)
		}
		if err != nil {
			return nil // stopping
		}
	}
}

// await waits for a change, and not longer than next unless that is 0. The only possible error is that of ctx.
func await(ctx context.Context, changed *statedb.WatchSet, next time.Duration) error {
	limited, end := ctx, context.CancelFunc(func() {})
	watchdog.Idle(ctx)
	if next > 0 {
		limited, end = context.WithTimeout(ctx, next)
		watchdog.IdleFor(ctx, next)
	}
	defer end()
	defer watchdog.Busy(ctx)
	_, _ = changed.Wait(limited, serviceSettle)
	return ctx.Err()
}

// find queues policies that refer to changed Services or choose among the Services of their namespaces, and, when Services are known, policies without a statement.
func (j *serviceEvaluator) find(txn statedb.ReadTxn, feed *changefeed.Feed[*k8s.Service], changed *statedb.WatchSet, now time.Time) {
	moved := map[string]bool{} // keys of [byService]
	for _, change := range feed.UpTo(txn, changed) {
		moved[change.Object.Key()], moved[change.Object.Namespace+"/"] = true, true
	}
	for _, key := range slices.Sorted(maps.Keys(moved)) {
		for row := range j.Table.List(txn, byService.Query(key)) {
			due := row.restated.Add(time.Duration(j.Pause))
			if row.Valid != "" && due.After(now) {
				j.later[row.Ref] = due
				continue
			}
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

// wake queues the policies whose pause has ended. It returns the time until the next pause ends; 0 if there is none.
func (j *serviceEvaluator) wake(now time.Time) (next time.Duration) {
	var ended []policy.Ref
	for ref, due := range j.later {
		left := due.Sub(now)
		switch {
		case left <= 0:
			ended = append(ended, ref)
		case next == 0 || left < next:
			next = left
		}
	}
	slices.SortFunc(ended, func(a, b policy.Ref) int {
		return cmp.Or(j.later[a].Compare(j.later[b]), cmp.Compare(a.String(), b.String()))
	})
	for _, ref := range ended {
		delete(j.later, ref)
		j.queue.Add(ref)
	}
	return next
}

// evaluatePortion makes a portion of the statements from one snapshot. It makes none about policies whose Services have the same meaning as before.
func (j *serviceEvaluator) evaluatePortion(ctx context.Context, txn statedb.ReadTxn, known *knownServices) error {
	if known == nil {
		return nil // the queue waits for the list of Services
	}
	outdated := map[policy.Ref]*statement{}
	size := func(ref policy.Ref) int {
		row, _, found := j.Table.Get(txn, refIndex.Query(ref.String()))
		if !found || !row.refersToServices() || row.Valid != "" && row.meaning == known.meaningOf(row) {
			return 0
		}
		outdated[ref] = row
		return row.size + policyBytes + known.bytesOf(row)
	}
	portion := j.queue.Take(servicePortion, size)
	for i, ref := range portion {
		watchdog.Busy(ctx)
		if outdated[ref] == nil {
			continue
		}
		if err := j.restate(ctx, known, outdated[ref]); err != nil {
			for _, left := range portion[i+1:] {
				j.queue.Add(left)
			}
			j.queue.Add(ref) // after the others, which it must not delay
			return err
		}
	}
	return nil
}

// restate reads a policy again, and replaces its statement.
func (j *serviceEvaluator) restate(ctx context.Context, known *knownServices, old *statement) error {
	object, err := j.read(ctx, old.Ref)
	if apierrors.IsNotFound(err) {
		return nil // the row will be deleted
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", old.Ref, err)
	}
	row, err := evaluate(object, j.environment(old.known), known)
	if err != nil {
		return err
	}
	if row.known = old.known; len(row.groups) > 0 && row.known != nil && *row.known == nil {
		return nil // a newer version, which refers to groups that are not known: its follower is about to read it
	}
	if row.restated = old.restated; old.Valid != "" {
		row.restated = time.Now()
	}
	return j.replace(old, row)
}

// replace writes a statement in place of another one, unless the other one was replaced or deleted meanwhile. [serviceEvaluator.find] reads the changes of Services
// since the snapshot later, and finds the row, unless the row refers to other Services: it is about a newer version of the policy, or its selectors choose others.
func (j *serviceEvaluator) replace(old, row *statement) error {
	txn := j.DB.WriteTxn(j.Table, j.Services)
	defer txn.Abort()
	is, _, found := j.Table.Get(txn, refIndex.Query(old.Ref.String()))
	if !found || !is.covers(old) {
		return nil
	}
	if (!slices.Equal(row.services, old.services) || !slices.Equal(row.namespaces, old.namespaces)) && !j.upToDate(txn, row) {
		row.retract()
	}
	row.inheritStatus(is)
	if _, _, err := j.Table.Insert(txn, row); err != nil {
		return fmt.Errorf("write the statement about %s: %w", row.Ref, err)
	}
	txn.Commit()
	return nil
}
