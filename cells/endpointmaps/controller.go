package endpointmaps

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
)

// maxProblems is how many endpoints the module's health names.
const maxProblems = 5

// controller keeps the three tables in step with endpoints and the gateways.
type controller struct {
	cell.In

	DB        *statedb.DB
	Jobs      job.Group
	Endpoints statedb.Table[*endpoints.Endpoint]
	Node      statedb.Table[*localnode.LocalNode]
	Policies  statedb.Table[*endpointpolicies.EndpointPolicy]
	Facts     statedb.RWTable[*bpfendpoints.Facts]
	Links     statedb.RWTable[*bpfendpoints.Link]
	Addresses statedb.RWTable[*bpfendpoints.Address]
	Init      *initializers
}

func registerController(c controller) {
	heartbeat.Add(c.Jobs, "fill-endpoint-maps", c.run)
}

func (c controller) run(ctx context.Context, health cell.Health) error {
	for {
		txn := heartbeat.Snapshot(ctx, c.DB, c.Endpoints, c.Node, c.Policies)
		rows, endpointsChanged := c.Endpoints.AllWatch(txn)
		node, nodeChanged := c.node(txn)
		_, policiesChanged := c.Policies.AllWatch(txn)
		_, addressesChanged := c.Addresses.AllWatch(txn)
		complete, initialized := c.complete(txn, node)

		want := compute(objects(rows), gatewaysOf(node), c.lastGateways(txn), c.policyOf(txn))

		count, undecided := len(want.facts), want.undecided // commit takes want apart
		taken := c.commit(want, complete)
		problems := append(want.problems, taken...)
		if len(taken) == 0 {
			addressesChanged = nil // nobody has to give one up, and statuses change often
		}

		report(health, problems, count, undecided)

		heartbeat.Idle(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-endpointsChanged:
		case <-nodeChanged:
		case <-policiesChanged:
		case <-addressesChanged:
		case <-initialized:
		}
	}
}

// node reads the one row of local-node.
func (c controller) node(txn statedb.ReadTxn) (*localnode.LocalNode, <-chan struct{}) {
	rows, changed := c.Node.AllWatch(txn)
	for n := range rows {
		return n, changed
	}
	return nil, changed
}

// complete tells whether every endpoint that exists can have its rows now, and what to wait for otherwise.
func (c controller) complete(txn statedb.ReadTxn, node *localnode.LocalNode) (bool, <-chan struct{}) {
	if done, changed := c.Endpoints.Initialized(txn); !done {
		return false, changed
	}
	if done, changed := c.Policies.Initialized(txn); !done {
		return false, changed
	}
	if done, changed := c.Node.Initialized(txn); !done {
		return false, changed
	}
	return node != nil && node.Ready, nil // the watch on local-node sees it become ready
}

// policyOf finds the policy and the identity of an endpoint.
func (c controller) policyOf(txn statedb.ReadTxn) func(*endpoints.Endpoint) (*endpointpolicies.EndpointPolicy, bool) {
	return func(ep *endpoints.Endpoint) (*endpointpolicies.EndpointPolicy, bool) {
		return endpointpolicies.Of(txn, c.Policies, ep.ID, ep.AttachmentID())
	}
}

// lastGateways finds what the row of an endpoint says now.
func (c controller) lastGateways(txn statedb.ReadTxn) func(uint16) (gateways, bool) {
	return func(id uint16) (gateways, bool) {
		f, _, found := c.Facts.Get(txn, bpfendpoints.FactsByID(id))
		if !found {
			return gateways{}, false
		}
		return gateways{f.GatewayIPv4, f.GatewayIPv6}, true
	}
}

// commit writes what differs. An address that a host row has stays the host's and is returned as a problem.
func (c controller) commit(want desired, complete bool) (problems []error) {
	txn := c.DB.WriteTxn(c.Facts, c.Links, c.Addresses)
	defer txn.Abort()
	var own []*bpfendpoints.Address
	for row := range c.Addresses.All(txn) {
		if row.Owner == endpointOwner {
			own = append(own, row)
		} else if a, wanted := want.addresses[row.Addr]; wanted {
			problems = append(problems, fmt.Errorf("endpoint %d: address %s belongs to the node (%s)", a.ID, row.Addr, row.Owner))
			delete(want.addresses, row.Addr)
		}
	}
	settle(txn, c.Facts, objects(c.Facts.All(txn)), want.facts, func(f *bpfendpoints.Facts) uint16 { return f.ID })
	settle(txn, c.Links, objects(c.Links.All(txn)), want.links, func(l *bpfendpoints.Link) uint32 { return l.IfIndex })
	settle(txn, c.Addresses, slices.Values(own), want.addresses, addrOf)
	if complete {
		c.Init.endpoints(txn)
	}
	txn.Commit()
	return problems
}

// row is what settle needs of a row.
type row[R any] interface {
	Equal(R) bool
	WithStatus(reconciler.Status) R
}

// settle makes the rows of have those of want: what is equal keeps its status, what differs is written as pending, the
// rest is deleted. It takes want apart.
func settle[K comparable, R row[R]](txn statedb.WriteTxn, table statedb.RWTable[R], have iter.Seq[R], want map[K]R, key func(R) K) {
	for r := range have {
		w, wanted := want[key(r)]
		switch {
		case !wanted:
			_, _, _ = table.Delete(txn, r)
		case w.Equal(r):
			delete(want, key(r))
		}
	}
	for _, w := range want {
		_, _, _ = table.Insert(txn, w.WithStatus(reconciler.StatusPending()))
	}
}

// objects drops the revisions.
func objects[R any](rows iter.Seq2[R, statedb.Revision]) iter.Seq[R] {
	return func(yield func(R) bool) {
		for r := range rows {
			if !yield(r) {
				return
			}
		}
	}
}

func report(health cell.Health, problems []error, n, undecided int) {
	if len(problems) == 0 {
		message := fmt.Sprintf("%d endpoints", n)
		if undecided > 0 {
			message += fmt.Sprintf(", and %d that wait for their policy", undecided)
		}
		health.OK(message)
		return
	}
	message := fmt.Sprintf("%d endpoints cannot pass traffic", len(problems))
	health.Degraded(message, errors.Join(problems[:min(len(problems), maxProblems)]...))
}
