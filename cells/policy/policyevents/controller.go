package policyevents

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/changefeed"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/policies"
)

// Reason is the reason of all Events of this cell.
const Reason = "PolicyOverflow"

const (
	// perNode is the range of the random delay of an Event for each node of the cluster: agents that find the same problem together send at most 100 requests a
	// second.
	perNode = 10 * time.Millisecond
	// burst Events of an agent are not delayed otherwise; more follow after a pause each.
	burst = 3
	pause = time.Minute
	// again is the time after which an Event is created again. The API server keeps Events for an hour by default.
	again   = time.Hour
	timeout = 10 * time.Second // of one request
)

type params struct {
	cell.In

	Log      *slog.Logger
	DB       *statedb.DB
	Agent    agentconfig.Agent
	Client   *kubeapi.Client
	Policies statedb.Table[*policies.Policy]
	Nodes    statedb.Table[*k8s.Node]
}

// controller is the state of the loop.
type controller struct {
	params
	reports map[policy.Ref]*report // of policies with a row that has, or had, the problem
	limit   *rate.Limiter
	failed  error // of the last request
}

// report is the Event of a policy.
type report struct {
	ref  policy.Ref
	uid  string
	text string    // empty while the policy has no such problem
	due  time.Time // when the Event is created next, while text is not empty
}

func newController(p params) *controller {
	return &controller{params: p, reports: map[policy.Ref]*report{}, limit: rate.NewLimiter(rate.Every(pause), burst)}
}

func (c *controller) run(ctx context.Context, health cell.Health) error {
	txn := c.DB.WriteTxn(c.Policies)
	feed, err := changefeed.Follow(txn, c.Policies)
	txn.Commit()
	if err != nil {
		return err
	}
	defer feed.Close()
	return loop.Run(ctx, c.DB, loop.Options{Tables: []statedb.TableMeta{c.Policies}}, func(r *loop.Round) error {
		c.read(feed.UpTo(r.Txn, r.Changed), c.Nodes.NumObjects(r.Txn), time.Now())
		r.Txn = nil // requests follow
		if wait := c.createDue(ctx, time.Now()); wait > 0 {
			r.Within(wait)
		}
		if n := len(c.sorted()); c.failed != nil && n > 0 {
			health.Degraded("create Events of policies", c.failed)
		} else {
			health.OK(fmt.Sprintf("%d policies exceed limits of this node", n))
		}
		return nil
	})
}

// read updates the reports by changed rows.
func (c *controller) read(changes []statedb.Change[*policies.Policy], nodes int, now time.Time) {
	for _, change := range changes {
		p := change.Object
		old, text := c.reports[p.Ref], overflowOf(p)
		switch {
		case change.Deleted:
			delete(c.reports, p.Ref)
		case old != nil && old.uid == p.UID: // also if the problem comes back: its Event may still exist
			old.text = text
		case text == "" || p.UID == "": // a policy of a file has no object
			delete(c.reports, p.Ref)
		default:
			c.reports[p.Ref] = &report{ref: p.Ref, uid: p.UID, text: text, due: now.Add(rand.N(time.Duration(max(nodes, 1)) * perNode))}
		}
	}
}

// overflowOf returns the problem of a policy that exceeds limits of this node, empty for others.
func overflowOf(p *policies.Policy) string {
	for _, problem := range p.Problems {
		if problem.Reason == policy.ReasonOverflow {
			return problem.Message
		}
	}
	return ""
}

// createDue creates the Events that are due, the oldest first, as far as the limit permits. It returns the time until the next one, 0 for never. An Event that
// the API server rejects (a missing permission, a full quota) waits like one that was created.
func (c *controller) createDue(ctx context.Context, now time.Time) (wait time.Duration) {
	for _, r := range c.sorted() {
		if wait = r.due.Sub(now); wait > 0 {
			return wait
		}
		token := c.limit.ReserveN(now, 1)
		if wait = token.DelayFrom(now); wait > 0 {
			token.CancelAt(now)
			return wait
		}
		err := c.create(ctx, r, now)
		if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) {
			c.Log.Warn("API server rejects an Event of a policy", "policy", r.ref, "error", err)
			err = nil
		}
		if c.failed = err; err != nil { // the API server is likely unavailable, so others wait too
			c.failed = fmt.Errorf("create an Event of %s: %w", r.ref, err)
			return pause
		}
		wait = again
		r.due = now.Add(wait)
	}
	return wait
}

func (c *controller) create(ctx context.Context, r *report, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	about := kubeapi.PolicyReference(string(r.ref.Kind), r.ref.Namespace, r.ref.Name, r.uid)
	return c.Client.Emit(ctx, kubeapi.NewNodeWarning(about, c.Agent.NodeName, Reason, r.text, now))
}

// sorted returns the reports of policies with the problem, the first due one first.
func (c *controller) sorted() (list []*report) {
	for _, r := range c.reports {
		if r.text != "" {
			list = append(list, r)
		}
	}
	slices.SortFunc(list, func(a, b *report) int {
		return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.ref.String(), b.ref.String()))
	})
	return list
}
