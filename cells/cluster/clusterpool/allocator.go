package clusterpool

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cilium/hive/cell"
	"golang.org/x/time/rate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/leaderwork"
	"github.com/waggle-net/waggle/pkg/rows"
	"github.com/waggle-net/waggle/pkg/tables/podcidrpool"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// allocator assigns pod CIDRs while this replica leads.
type allocator struct {
	params
	logged  string        // last logged fault
	limiter *rate.Limiter // of rounds, over all terms of this replica as the leader
}

func newAllocator(p params) *allocator {
	return &allocator{params: p, limiter: rate.NewLimiter(rate.Every(sustained), burst)}
}

const (
	settle     = 100 * time.Millisecond // combines nodes that are created at the same time into one round
	between    = time.Second            // minimum time between the starts of two rounds, each of which lists all nodes
	sustained  = 4 * time.Second        // time between the starts of two rounds while nodes change all the time
	burst      = 4                      // rounds that may start sooner, so there are at most burst + 1 min / sustained = 19 lists a minute
	failedWait = 2 * time.Second        // retry interval after a failed write
	resync     = 5 * time.Minute        // full round that repairs missed watch events
	pageSize   = 500
)

// run allocates whenever this replica leads.
func (a *allocator) run(ctx context.Context, health cell.Health) error {
	err := leaderwork.Run(ctx, a.DB, a.Leadership,
		func(leading context.Context) error { return a.lead(leading, health) },
		func() error {
			health.OK("another replica leads")
			return a.commit(nil)
		})
	if err != nil {
		health.Degraded("assign pod CIDRs to nodes", err)
	}
	return err
}

// lead runs rounds until ctx ends or a round fails.
func (a *allocator) lead(ctx context.Context, health cell.Health) error {
	for {
		turn := a.limiter.Reserve()
		if err := watchdog.Sleep(ctx, turn.Delay()); err != nil {
			turn.Cancel() // the next term as the leader must not wait for a round that did not start
			return err
		}
		began := time.Now()
		r, err := a.round(ctx)
		if err != nil {
			return err
		}
		a.report(health, r)
		if err := a.follow(ctx, r); err != nil {
			return err
		}
		if err := watchdog.Sleep(ctx, max(settle, between-time.Since(began))); err != nil {
			return err
		}
	}
}

// result is the outcome of a round.
type result struct {
	rows    []podcidrpool.CIDR
	known   map[string]string // CIDRs of each node, in the format of [text]
	version string            // of the list
	failed  bool              // a write must be retried
}

// text formats a list of CIDRs for comparison.
func text(cidrs []string) string { return strings.Join(cidrs, ",") }

// round lists all nodes, and assigns CIDRs to nodes without.
func (a *allocator) round(ctx context.Context) (result, error) {
	nodes, version, err := a.list(ctx)
	if err != nil {
		return result{}, err
	}
	rows, give := plan(a.Settings.families, nodes)
	r := result{known: map[string]string{}, version: version}
	for i := range nodes {
		r.known[nodes[i].Name] = text(nodes[i].Spec.IPAM.PodCIDRs)
	}
	pending := rows
	for _, g := range give {
		pending = append(pending, g.rows...)
	}
	if err := a.commit(pending); err != nil {
		return result{}, err
	}
	written, failed := a.write(ctx, give)
	for _, g := range written {
		r.known[g.node.Name] = text(g.cidrs)
		rows = append(rows, g.rows...)
	}
	r.rows, r.failed = rows, failed
	return r, a.commit(rows)
}

// list reads a consistent snapshot of all nodes, with a quorum read instead of a cache that may lag.
func (a *allocator) list(ctx context.Context) (nodes []ciliumv2.CiliumNode, version string, err error) {
	options := metav1.ListOptions{Limit: pageSize}
	for {
		var page ciliumv2.CiliumNodeList
		watchdog.Busy(ctx) // each page is a request
		if err := a.Client.List(ctx, kubeapi.CiliumNodes, "", options, &page); err != nil {
			return nil, "", err
		}
		nodes, version = append(nodes, page.Items...), page.ResourceVersion
		if options.Continue = page.Continue; options.Continue == "" {
			return nodes, version, nil
		}
	}
}

// follow waits for the next round: until a node is added or removed, its CIDRs change, or the timer expires.
func (a *allocator) follow(ctx context.Context, r result) error {
	due := resync
	if r.failed {
		due = failedWait
	}
	timer := time.NewTimer(due)
	defer timer.Stop()
	w, err := a.Client.Watch(ctx, kubeapi.CiliumNodes, "", metav1.ListOptions{ResourceVersion: r.version, AllowWatchBookmarks: true})
	if err != nil {
		return err
	}
	defer w.Stop()
	watchdog.IdleFor(ctx, due) // lead starts the next round
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			return nil
		case event, open := <-w.ResultChan():
			if !open || event.Type != watch.Bookmark && r.unexpected(event) {
				return nil
			}
		}
	}
}

// unexpected reports whether an event contains a state unknown to the round. An error event is unexpected.
func (r result) unexpected(event watch.Event) bool {
	node, ok := event.Object.(*ciliumv2.CiliumNode)
	if !ok || event.Type == watch.Deleted {
		return true
	}
	known, found := r.known[node.Name]
	return !found || known != text(node.Spec.IPAM.PodCIDRs)
}

// commit replaces the content of the table. The table has no other writer.
func (a *allocator) commit(list []podcidrpool.CIDR) error {
	want := make(map[string]podcidrpool.CIDR, len(list))
	for _, row := range list {
		want[row.Key()] = row
	}
	txn := a.DB.WriteTxn(a.Table)
	defer txn.Abort()
	if err := rows.Replace(txn, a.Table, a.Table.All(txn), want, podcidrpool.CIDR.Key, rows.Identical); err != nil {
		return err
	}
	txn.Commit()
	return nil
}

// most limits the sentences of a report.
const most = 3

// report sets the health of the module: the use of the pool, or the faults.
func (a *allocator) report(health cell.Health, r result) {
	var wrong []error
	count := 0
	for _, row := range r.rows {
		switch {
		case row.State == podcidrpool.Given:
			continue
		case count < most:
			wrong = append(wrong, fmt.Errorf("%s: %s", row.Key(), row.Reason))
		}
		count++
	}
	if count > most {
		wrong = append(wrong, fmt.Errorf("and %d more, see the table cluster-pool", count-most))
	}
	if err := errors.Join(wrong...); err != nil {
		if text := err.Error(); text != a.logged { // rounds may run every few seconds
			a.Log.Warn("Pod CIDRs of nodes", "wrong", count, "error", err)
			a.logged = text
		}
		health.Degraded("pod CIDRs of nodes", err)
		return
	}
	a.logged = ""
	health.OK(fmt.Sprintf("%d nodes have their pod CIDRs", len(r.known)))
}
