package ciliumendpoints

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/endpointstates"
	"github.com/waggle-net/waggle/pkg/tables/identities"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// States of an object. The many states of an endpoint are not worth a write each.
const (
	stateReady    = "ready"
	stateNotReady = "not-ready" // in quarantine: it holds its addresses and nothing may pass
)

// controller makes a row of each endpoint of a pod.
type controller struct{ params }

// run begins when all is known, also which objects there are: otherwise a restart would write all of them again.
func (c controller) run(ctx context.Context, health cell.Health) error {
	begun := false
	for {
		heartbeat.Busy(ctx)
		txn := c.DB.ReadTxn()
		changed := statedb.NewWatchSet()
		complete := c.inputsComplete(txn, changed)
		begun = begun || complete

		if begun {
			if err := c.pass(txn, health, complete); err != nil {
				return err
			}
		} else {
			health.OK("waiting for pods, their identities, this node's address and the CiliumEndpoint objects there are")
		}

		heartbeat.Idle(ctx)
		if _, err := changed.Wait(ctx, settle); ctx.Err() != nil {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func (c controller) pass(txn statedb.ReadTxn, health cell.Health, complete bool) error {
	want, nameless := c.compute(txn)

	if err := c.commit(want, complete); err != nil {
		health.Degraded("desired CiliumEndpoint objects are out of date", err)
		return err
	}

	if len(nameless) > 0 {
		health.Degraded(fmt.Sprintf("%d pods cannot be published", len(nameless)), errors.Join(nameless[:min(len(nameless), 3)]...))
	} else {
		health.OK("endpoints of pods are wanted as CiliumEndpoint objects")
	}
	return nil
}

// inputsComplete tells whether every endpoint can have its row, and adds to changed what to wait for.
func (c controller) inputsComplete(txn statedb.ReadTxn, changed *statedb.WatchSet) bool {
	complete := true
	for _, t := range []statedb.TableMeta{c.Endpoints, c.Of, c.States, c.Pods, c.Node, c.Published} {
		if done, initialized := t.Initialized(txn); !done {
			complete = false
			changed.Add(initialized)
		}
	}
	_, a := c.Endpoints.AllWatch(txn)
	_, b := c.Of.AllWatch(txn)
	_, d := c.States.AllWatch(txn)
	_, e := c.Pods.AllWatch(txn)
	_, f := c.Node.AllWatch(txn)
	changed.Add(a, b, d, e, f)
	return complete && c.node(txn).IsValid()
}

// compute derives the rows. Of two sandboxes of a pod, which may overlap, the newer stands for it. Nameless are pods whose
// UID nobody knows: an object without an owner would outlive its pod.
func (c controller) compute(txn statedb.ReadTxn) (want map[string]*object, nameless []error) {
	newest := map[string]*endpoints.Endpoint{}
	for ep := range c.Endpoints.All(txn) {
		if other := newest[ep.PodName()]; ep.K8sPodName != "" && (other == nil || endpoints.CompareAge(ep, other) > 0) {
			newest[ep.PodName()] = ep
		}
	}
	want = make(map[string]*object, len(newest))
	for name, ep := range newest {
		row, err := c.row(txn, ep)
		if err != nil {
			nameless = append(nameless, err)
		}
		if row != nil {
			want[name] = row
		}
	}
	return want, nameless
}

// row is the object of one endpoint; nil while it is being attached.
func (c controller) row(txn statedb.ReadTxn, ep *endpoints.Endpoint) (*object, error) {
	number, known := identities.Of(txn, c.Of, ep.ID, ep.AttachmentID())
	state, _, found := c.States.Get(txn, endpointstates.ByID(ep.ID))
	if !known || !found || state.Attachment != ep.AttachmentID() || state.State == endpointstates.WaitingForIdentity {
		return nil, nil
	}
	row := &object{Namespace: ep.K8sNamespace, Name: ep.K8sPodName, PodUID: ep.K8sUID, EndpointID: ep.ID,
		Attachment: ep.AttachmentID(), ContainerID: ep.ContainerID, IPv4: ep.IPv4, IPv6: ep.IPv6, Node: c.node(txn), State: stateReady,
		Ports: sortedPorts(ep.Ports)}
	if ep.Quarantine != "" {
		row.State = stateNotReady
	}
	if !identity.IsProvisional(number.Identity) { // it means nothing to others
		row.Identity, row.Labels = number.Identity, number.Labels
	}
	if pod, _, found := c.Pods.Get(txn, k8s.PodByName(ep.PodName())); found && pod.HasUID(row.PodUID) {
		row.PodUID, row.ServiceAccount = pod.UID, pod.ServiceAccount
		if len(row.Ports) == 0 { // an endpoint of an earlier version that has not learnt them yet
			row.Ports = sortedPorts(pod.Ports)
		}
	}
	if row.PodUID == "" {
		return nil, fmt.Errorf("endpoint %d: nobody knows the UID of pod %s: neither the runtime nor the table k8s-pods has it",
			ep.ID, ep.PodName())
	}
	return row, nil
}

// commit writes what differs. What the reconciler has learnt of an object stays while it is the same pod's.
func (c controller) commit(want map[string]*object, complete bool) error {
	txn := c.DB.WriteTxn(c.Wanted)
	defer txn.Abort()
	var errs []error
	for old := range c.Wanted.All(txn) {
		row, wanted := want[old.Key()]
		switch {
		case !wanted:
			_, _, err := c.Wanted.Delete(txn, old)
			errs = append(errs, err)
		case row.Equal(old):
			delete(want, old.Key())
		case row.PodUID == old.PodUID:
			row.UID = old.UID
		}
	}
	for _, row := range want {
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

// fresh is how long a row was written before cilium-endpoints must show it.
const fresh = 10 * time.Second
