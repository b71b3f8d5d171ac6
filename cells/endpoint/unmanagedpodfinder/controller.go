package unmanagedpodfinder

import (
	"context"
	"fmt"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	corev1 "k8s.io/api/core/v1"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/rows"
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
	Settings  agentconfig.Agent
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
	watched := []statedb.TableMeta{c.Pods, c.Endpoints}
	return loop.Run(ctx, c.DB, loop.Options{Tables: watched, Settle: settle}, func(r *loop.Round) error {
		r.Watch(watched...)
		known := r.Complete(watched...)

		var want map[string]*unmanagedpods.Pod
		if known {
			var again time.Duration
			if want, again = c.compute(r.Txn, time.Now()); again > 0 {
				r.Within(again)
			}
		}

		if err := c.commit(want); err != nil {
			return err
		}

		switch {
		case !known:
			health.OK("waiting for the pods and endpoints to be known")
		case len(want) > 0:
			health.OK(fmt.Sprintf("%d pods run without an endpoint; see the table unmanaged-pods", len(want)))
		default:
			health.OK("every running pod has an endpoint")
		}
		return nil
	})
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
	if err := rows.Replace(txn, c.Unmanaged, c.Unmanaged.All(txn), want, (*unmanagedpods.Pod).Key, rows.Same); err != nil {
		return err
	}
	txn.Commit()
	return nil
}
