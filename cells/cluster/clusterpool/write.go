package clusterpool

import (
	"context"
	"encoding/json"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/leaderwork"
	"github.com/waggle-net/waggle/pkg/tables/podcidrpool"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

const (
	writers  = 16 // concurrent requests; the client limits their rate
	attempts = 4  // a starting node writes its own fields meanwhile
)

// write patches all nodes. It returns the outcomes, without deleted nodes, and reports whether a write failed.
func (a *allocator) write(ctx context.Context, give []assignment) (written []assignment, failed bool) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	queue := make(chan assignment)
	for range min(writers, len(give)) {
		wg.Go(func() {
			for g := range queue {
				err := a.writeOne(ctx, g)
				if apierrors.IsNotFound(err) {
					continue
				}
				g = g.done(err)
				mu.Lock()
				written, failed = append(written, g), failed || err != nil
				mu.Unlock()
			}
		})
	}
	for _, g := range give {
		queue <- g
	}
	close(queue)
	wg.Wait()
	return written, failed
}

// done returns the assignment with the outcome in its rows.
func (g assignment) done(err error) assignment {
	rows := make([]podcidrpool.CIDR, 0, len(g.rows))
	for _, row := range g.rows {
		row.State = podcidrpool.Given
		if err != nil {
			row.State, row.Reason = podcidrpool.Failed, err.Error()
		}
		rows = append(rows, row)
	}
	g.rows = rows
	if err != nil {
		g.cidrs = g.node.Spec.IPAM.PodCIDRs
	}
	return g
}

// writeOne patches one node if it is unchanged since the list. When only other fields have changed, it
// retries: no other node was assigned the CIDR in this round.
func (a *allocator) writeOne(ctx context.Context, g assignment) error {
	node := g.node
	for try := 1; ; try++ {
		if err := leaderwork.Check(a.DB, a.Leadership); err != nil {
			return err
		}
		watchdog.Busy(ctx) // each request may take long
		data, err := patch(node, g.cidrs)
		if err != nil {
			return err
		}
		err = a.Client.Patch(ctx, kubeapi.CiliumNodes, "", node.Name, types.MergePatchType, data, nil)
		if !apierrors.IsConflict(err) || try == attempts {
			return err
		}
		watchdog.Busy(ctx)
		now := &ciliumv2.CiliumNode{}
		if getErr := a.Client.Get(ctx, kubeapi.CiliumNodes, "", node.Name, now); getErr != nil {
			return getErr
		}
		if now.UID != node.UID || text(now.Spec.IPAM.PodCIDRs) != text(node.Spec.IPAM.PodCIDRs) {
			return err
		}
		node = now
	}
}

// patch returns a patch of only the CIDRs. It contains the resourceVersion, so that the server rejects it for another version.
func patch(node *ciliumv2.CiliumNode, cidrs []string) ([]byte, error) {
	type object = map[string]any
	return json.Marshal(object{
		"metadata": object{"uid": node.UID, "resourceVersion": node.ResourceVersion},
		"spec":     object{"ipam": object{"podCIDRs": cidrs}},
	})
}
