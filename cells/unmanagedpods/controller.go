package unmanagedpods

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	corev1 "k8s.io/api/core/v1"

	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/settings"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/unmanagedpods"
)

const (
	// hold is the time for which a pod must be without an endpoint while the agent runs: the endpoint of an ending pod is deleted shortly before the status of the
	// pod changes.
	hold = 10 * time.Second
	// settle is the debounce interval between a change and a pass.
	settle = 200 * time.Millisecond
)

type params struct {
	cell.In

	DB        *statedb.DB
	Settings  settings.Agent
	Pods      statedb.Table[*k8s.Pod]
	Endpoints statedb.Table[*endpoints.Endpoint]
	Unmanaged statedb.RWTable[*unmanagedpods.Pod]
}

type controller struct {
	params
	since map[string]time.Time // time at which a pod was first seen without an endpoint
	first bool                 // no pass with complete inputs has run
}

func newController(p params) *controller {
	return &controller{params: p, since: map[string]time.Time{}, first: true}
}

func (c *controller) run(ctx context.Context, health cell.Health) error {
	for {
		txn := heartbeat.Snapshot(ctx, c.DB, c.Pods, c.Endpoints)
		changed := statedb.NewWatchSet()
		known := c.inputsComplete(txn, changed)

		var want map[string]*unmanagedpods.Pod
		var again time.Duration
		if known {
			want, again = c.compute(txn, time.Now())
		}

		count := len(want)
		if err := c.commit(want); err != nil {
			return err
		}

		switch {
		case !known:
			health.OK("waiting for the pods and endpoints to be known")
		case count > 0:
			health.OK(fmt.Sprintf("%d pods run without an endpoint; see the table unmanaged-pods", count))
		default:
			health.OK("every running pod has an endpoint")
		}

		wait, cancel := ctx, context.CancelFunc(func() {})
		if again > 0 {
			wait, cancel = context.WithTimeout(ctx, again)
		}
		heartbeat.Idle(ctx)
		_, _ = changed.Wait(wait, settle) // an error means that the time is over or the agent stops
		cancel()
		if ctx.Err() != nil {
			return nil
		}
	}
}

func (c *controller) inputsComplete(txn statedb.ReadTxn, changed *statedb.WatchSet) bool {
	_, pods := c.Pods.AllWatch(txn)
	_, eps := c.Endpoints.AllWatch(txn)
	changed.Add(pods, eps)
	complete := true
	for _, t := range []statedb.TableMeta{c.Pods, c.Endpoints} {
		if done, initialized := t.Initialized(txn); !done {
			complete = false
			changed.Add(initialized)
		}
	}
	return complete
}

// compute returns the unmanaged pods by key, and the time until the next pass without a change; 0 for none.
func (c *controller) compute(txn statedb.ReadTxn, now time.Time) (want map[string]*unmanagedpods.Pod, again time.Duration) {
	want = map[string]*unmanagedpods.Pod{}
	since := map[string]time.Time{}
	for pod := range c.Pods.All(txn) {
		if !c.running(pod) || c.managed(txn, pod) {
			continue
		}
		first, known := c.since[pod.Key()]
		switch {
		case known:
		case c.first:
			first = now.Add(-hold) // it existed before the agent
		default:
			first = now
		}
		since[pod.Key()] = first
		if left := hold - now.Sub(first); left > 0 {
			if again == 0 || left < again {
				again = left
			}
			continue
		}
		want[pod.Key()] = &unmanagedpods.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, PodIPs: pod.PodIPs}
	}
	c.since, c.first = since, false
	return want, again
}

// running reports whether a pod runs on this node with a network namespace of its own.
func (c *controller) running(pod *k8s.Pod) bool {
	if pod.HostNetwork || pod.NodeName != "" && pod.NodeName != c.Settings.NodeName {
		return false
	}
	switch corev1.PodPhase(pod.Phase) {
	case corev1.PodSucceeded, corev1.PodFailed:
		return false
	case corev1.PodRunning:
		return true
	}
	return len(pod.PodIPs) > 0
}

func (c *controller) managed(txn statedb.ReadTxn, pod *k8s.Pod) bool {
	for ep := range c.Endpoints.List(txn, endpoints.ByPod(pod.Key())) {
		if pod.HasUID(ep.K8sUID) {
			return true
		}
	}
	return false
}

// commit replaces the rows of the table. Equal rows are not written.
func (c *controller) commit(want map[string]*unmanagedpods.Pod) error {
	txn := c.DB.WriteTxn(c.Unmanaged)
	defer txn.Abort()
	var errs []error
	for old := range c.Unmanaged.All(txn) {
		row, still := want[old.Key()]
		switch {
		case !still:
			_, _, err := c.Unmanaged.Delete(txn, old)
			errs = append(errs, err)
		case row.Equal(old):
			delete(want, old.Key())
		}
	}
	for _, row := range want {
		_, _, err := c.Unmanaged.Insert(txn, row)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("write unmanaged pods: %w", err)
	}
	txn.Commit()
	return nil
}
