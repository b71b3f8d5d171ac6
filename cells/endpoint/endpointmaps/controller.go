package endpointmaps

import (
	"context"
	"errors"
	"fmt"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/endpointfeed"
	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/rows"
	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/watchdog"
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
	watchdog.Add(c.Jobs, "fill-endpoint-maps", c.run)
}

// run has no debounce interval: an ADD waits for the rows of its endpoint. A pass processes the endpoints with a changed row, so that the cost of an ADD does
// not depend on the number of endpoints. It processes all endpoints once a minute, when the gateways change, and while an endpoint has a problem.
func (c controller) run(ctx context.Context, health cell.Health) error {
	f, err := c.follow()
	if err != nil {
		return fmt.Errorf("follow endpoints and their policies: %w", err)
	}
	defer f.close()
	last := lastPass{undecided: map[uint16]bool{}}
	options := loop.Options{Tables: []statedb.TableMeta{c.Endpoints, c.Node, c.Policies}, Interval: endpointfeed.FullPassInterval}
	return loop.Run(ctx, c.DB, options, func(r *loop.Round) error {
		marked := f.next(r.Txn, r.Changed)
		node := c.node(r)
		complete := r.Complete(c.Endpoints, c.Policies, c.Node) && node != nil && node.Ready
		if r.Full || last.all || last.gateways != gatewaysOf(node) || c.contested(r.Txn, marked) {
			marked = nil
		}

		want := compute(c.endpointsOf(r.Txn, marked), gatewaysOf(node), c.lastGateways(r.Txn), c.policyOf(r.Txn))

		taken := c.commit(want, marked, complete)
		problems := append(want.problems, taken...)
		last.note(want, marked)
		last.all, last.gateways = len(problems) > 0, gatewaysOf(node)

		report(health, problems, c.Facts.NumObjects(c.DB.ReadTxn()), len(last.undecided))

		if len(taken) > 0 {
			r.Watch(c.Addresses) // the node may release one of them
		}
		return nil
	})
}

// node returns the single row of local-node, nil without one.
func (c controller) node(r *loop.Round) *localnode.LocalNode {
	for n := range loop.All(r, c.Node) {
		return n
	}
	return nil
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
	err := errors.Join(
		rows.Replace(txn, c.Facts, have.facts, want.facts, func(f *bpfendpoints.Facts) uint16 { return f.ID }, rows.Same),
		rows.Replace(txn, c.Links, have.links, want.links, func(l *bpfendpoints.Link) uint32 { return l.IfIndex }, rows.Same),
		rows.Replace(txn, c.Addresses, have.addresses, want.addresses, addrOf, rows.Same))
	if err != nil {
		return append(problems, err)
	}
	if complete {
		c.Init.endpoints(txn)
	}
	txn.Commit()
	return problems
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
