package ciliumendpoints

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/endpointfeed"
	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/endpointstates"
	"github.com/waggle-net/waggle/pkg/tables/identities"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// States of an object. It has fewer states than an endpoint, because each change costs a write.
const (
	stateReady    = "ready"
	stateNotReady = "not-ready" // in quarantine: the endpoint holds its addresses and passes no traffic
)

// controller computes a row for each pod with an endpoint. It processes pods with changes, so that the cost of an ADD does not depend on the number of
// endpoints, and all pods once a minute and when the node's address changes.
type controller struct {
	params

	feed     feed
	podOf    map[uint16]string // pod of each endpoint, as of the followed changes
	marked   map[string]bool   // pods to process
	nameless map[string]error  // pods with an unknown UID
	node     netip.Addr        // address by which other nodes reach this one
	whole    time.Time         // time at which all pods were last marked
}

func newController(p params) *controller { return &controller{params: p} }

// run starts when all inputs are complete, including the existing objects: otherwise a restart would write all objects again.
func (c *controller) run(ctx context.Context, health cell.Health) error {
	if err := c.subscribe(); err != nil {
		return err
	}
	defer c.feed.close()
	begun := false
	return loop.Run(ctx, c.DB, loop.Options{Settle: settle, Interval: endpointfeed.FullPassInterval}, func(r *loop.Round) error {
		r.Watch(c.Node)
		complete := r.Complete(c.Endpoints, c.Of, c.States, c.Pods, c.Node, c.Published) && c.address(r.Txn).IsValid()
		c.follow(r.Txn, r.Changed)
		if begun = begun || complete; begun {
			return c.pass(r.Txn, health, complete)
		}
		health.OK("waiting for pods, their identities, this node's address and the existing CiliumEndpoint objects")
		return nil
	})
}

func (c *controller) pass(txn statedb.ReadTxn, health cell.Health, complete bool) error {
	want := c.compute(txn)

	if err := c.commit(want, complete); err != nil {
		health.Degraded("desired CiliumEndpoint objects are out of date", err)
		return err
	}
	c.marked = map[string]bool{}

	if len(c.nameless) > 0 {
		var some []error
		for _, name := range slices.Sorted(maps.Keys(c.nameless))[:min(len(c.nameless), 3)] {
			some = append(some, c.nameless[name])
		}
		health.Degraded(fmt.Sprintf("%d pods cannot be published", len(c.nameless)), errors.Join(some...))
	} else {
		health.OK("desired CiliumEndpoint objects are up to date")
	}
	return nil
}

// compute returns the rows of the marked pods; nil for a pod without one.
func (c *controller) compute(txn statedb.ReadTxn) map[string]*object {
	want := make(map[string]*object, len(c.marked))
	for name := range c.marked {
		delete(c.nameless, name)
		want[name] = nil
		ep := c.newest(txn, name)
		if ep == nil {
			continue
		}
		row, err := c.row(txn, ep)
		if err != nil {
			c.nameless[name] = err
		}
		want[name] = row
	}
	return want
}

// newest returns the endpoint of a pod. Two sandboxes of a pod may overlap; the newer one is returned.
func (c *controller) newest(txn statedb.ReadTxn, name string) (newest *endpoints.Endpoint) {
	for ep := range c.Endpoints.List(txn, endpoints.ByPod(name)) {
		if ep.K8sPodName != "" && (newest == nil || endpoints.CompareAge(ep, newest) > 0) {
			newest = ep
		}
	}
	return newest
}

// row returns the object of one endpoint; nil while the endpoint is being attached. It returns an error if the UID of the pod is unknown, because an object
// without an owner would outlive its pod.
func (c *controller) row(txn statedb.ReadTxn, ep *endpoints.Endpoint) (*object, error) {
	number, known := identities.Of(txn, c.Of, ep.ID, ep.AttachmentID())
	state, _, found := c.States.Get(txn, endpointstates.ByID(ep.ID))
	if !known || !found || state.Attachment != ep.AttachmentID() || state.State == endpointstates.WaitingForIdentity {
		return nil, nil
	}
	row := &object{Namespace: ep.K8sNamespace, Name: ep.K8sPodName, PodUID: ep.K8sUID, EndpointID: ep.ID,
		Attachment: ep.AttachmentID(), ContainerID: ep.ContainerID, IPv4: ep.IPv4, IPv6: ep.IPv6, Node: c.node, State: stateReady,
		Ports: sortedPorts(ep.Ports)}
	if ep.Quarantine != "" {
		row.State = stateNotReady
	}
	if !identity.IsProvisional(number.Identity) { // a provisional identity is valid on this node only
		row.Identity, row.Labels = number.Identity, number.Labels
	}
	if pod, _, found := c.Pods.Get(txn, k8s.PodByName(ep.PodName())); found && pod.HasUID(row.PodUID) {
		row.PodUID, row.ServiceAccount = pod.UID, pod.ServiceAccount
		if len(row.Ports) == 0 { // an endpoint of an older release has no ports yet
			row.Ports = sortedPorts(pod.Ports)
		}
	}
	if row.PodUID == "" {
		return nil, fmt.Errorf("endpoint %d: the UID of pod %s is unknown: neither the runtime nor the table k8s-pods has it",
			ep.ID, ep.PodName())
	}
	return row, nil
}

// commit writes the rows that differ. The UID of the object is kept while the pod is the same.
func (c *controller) commit(want map[string]*object, complete bool) error {
	txn := c.DB.WriteTxn(c.Wanted)
	defer txn.Abort()
	var errs []error
	for name, row := range want {
		old, _, found := c.Wanted.Get(txn, byName(name))
		switch {
		case row == nil && !found, row != nil && found && row.Equal(old):
			continue
		case row == nil:
			_, _, err := c.Wanted.Delete(txn, old)
			errs = append(errs, err)
			continue
		case found && row.PodUID == old.PodUID:
			row.UID = old.UID
		}
		_, _, err := c.Wanted.Insert(txn, row.WithStatus(reconciler.StatusPending()))
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("write desired-ciliumendpoints: %w", err)
	}
	if complete {
		c.Done(txn)
	}
	txn.Commit()
	return nil
}

// fresh is the minimum age of a written row from which cilium-endpoints must show it.
const fresh = 10 * time.Second
