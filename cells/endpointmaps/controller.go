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

	"github.com/waggle-net/waggle/pkg/endpointfeed"
	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
)

// maxProblems limits the endpoints that the module's health names.
const maxProblems = 5

// controller computes the rows of the three tables from endpoints and the gateways.
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

// run has no debounce interval: an ADD waits for the rows of its endpoint. A pass processes the endpoints with a changed row, so that the cost of an ADD does
// not depend on the number of endpoints. It processes all endpoints once a minute, when the gateways change, and while an endpoint has a problem.
func (c controller) run(ctx context.Context, health cell.Health) error {
	f, err := c.follow()
	if err != nil {
		return fmt.Errorf("follow endpoints and their policies: %w", err)
	}
	defer f.close()
	last := lastPass{all: true, undecided: map[uint16]bool{}}
	for alive := true; alive; {
		txn := heartbeat.Snapshot(ctx, c.DB, c.Endpoints, c.Node, c.Policies)
		changed := statedb.NewWatchSet()
		marked := f.next(txn, changed)
		node, nodeChanged := c.node(txn)
		complete, initialized := c.complete(txn, node)
		if last.all || last.gateways != gatewaysOf(node) || c.contested(txn, marked) {
			marked = nil
		}
		_, addressesChanged := c.Addresses.AllWatch(txn)

		want := compute(c.endpointsOf(txn, marked), gatewaysOf(node), c.lastGateways(txn), c.policyOf(txn))

		taken := c.commit(want, marked, complete)
		problems := append(want.problems, taken...)
		last.note(want, marked)
		last.all, last.gateways = len(problems) > 0, gatewaysOf(node)

		report(health, problems, c.Facts.NumObjects(c.DB.ReadTxn()), len(last.undecided))

		changed.Add(nodeChanged, initialized)
		if len(taken) > 0 {
			changed.Add(addressesChanged) // the node may release one of them
		}
		heartbeat.IdleFor(ctx, endpointfeed.FullPassInterval)
		var due bool
		due, alive = endpointfeed.Wait(ctx, changed)
		last.all = last.all || due
	}
	return nil
}

// node returns the single row of local-node, nil without one, and a channel that closes when it changes.
func (c controller) node(txn statedb.ReadTxn) (*localnode.LocalNode, <-chan struct{}) {
	rows, changed := c.Node.AllWatch(txn)
	for n := range rows {
		return n, changed
	}
	return nil, changed
}

// complete reports whether every existing endpoint can have its rows now. If not, it also returns the channel to wait for.
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
	return node != nil && node.Ready, nil // the watch on local-node fires when the node becomes ready
}

// policyOf returns a look-up of an endpoint's policy and identity.
func (c controller) policyOf(txn statedb.ReadTxn) func(*endpoints.Endpoint) (*endpointpolicies.EndpointPolicy, bool) {
	return func(ep *endpoints.Endpoint) (*endpointpolicies.EndpointPolicy, bool) {
		return endpointpolicies.Of(txn, c.Policies, ep.ID, ep.AttachmentID())
	}
}

// lastGateways returns a look-up of the gateways in an endpoint's current row.
func (c controller) lastGateways(txn statedb.ReadTxn) func(uint16) (gateways, bool) {
	return func(id uint16) (gateways, bool) {
		f, _, found := c.Facts.Get(txn, bpfendpoints.FactsByID(id))
		if !found {
			return gateways{}, false
		}
		return gateways{f.GatewayIPv4, f.GatewayIPv6}, true
	}
}

// commit writes the rows of the marked endpoints that differ. An address with a host row stays the host's and is returned as a problem.
func (c controller) commit(want desired, marked endpointfeed.Marks, complete bool) (problems []error) {
	txn := c.DB.WriteTxn(c.Facts, c.Links, c.Addresses)
	defer txn.Abort()
	for addr, a := range want.addresses {
		if row, _, found := c.Addresses.Get(txn, bpfendpoints.AddressByAddr(addr)); found && row.Owner != endpointOwner {
			problems = append(problems, fmt.Errorf("endpoint %d: address %s belongs to the node (%s)", a.ID, addr, row.Owner))
			delete(want.addresses, addr)
		}
	}
	have := c.rowsOf(txn, marked)
	settle(txn, c.Facts, slices.Values(have.facts), want.facts, func(f *bpfendpoints.Facts) uint16 { return f.ID })
	settle(txn, c.Links, slices.Values(have.links), want.links, func(l *bpfendpoints.Link) uint32 { return l.IfIndex })
	settle(txn, c.Addresses, slices.Values(have.addresses), want.addresses, addrOf)
	if complete {
		c.Init.endpoints(txn)
	}
	txn.Commit()
	return problems
}

// row has the methods that settle needs.
type row[R any] interface {
	Equal(R) bool
	WithStatus(reconciler.Status) R
}

// settle replaces the rows of have by the rows of want: equal rows keep their status, rows that differ are written as pending, other rows are deleted. It
// modifies want.
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

// objects yields the objects without their revisions.
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
			message += fmt.Sprintf(", and %d waiting for their policy", undecided)
		}
		health.OK(message)
		return
	}
	message := fmt.Sprintf("%d endpoints cannot pass traffic", len(problems))
	health.Degraded(message, errors.Join(problems[:min(len(problems), maxProblems)]...))
}
