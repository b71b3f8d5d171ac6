package endpointmanager

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/endpointfeed"
	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/tables/apiservers"
	"github.com/waggle-net/waggle/pkg/tables/collectedendpoints"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/sources"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

const (
	// settleCollect is the debounce interval that groups a burst of link changes into one scan.
	settleCollect = time.Second
	// slowScanFactor multiplies the scan interval of suspects that a full interval did not remove.
	slowScanFactor = 6
)

// collector scans for endpoints whose pods have ended without a DEL, and for endpoints whose links are wrong. See doc.go for the rule.
type collector struct {
	cell.In

	Log       *slog.Logger
	Config    Config
	Manager   *manager
	Devices   statedb.Table[*devices.Device]
	Sources   statedb.Table[sources.Source]
	Collected statedb.RWTable[collectedendpoints.Collected]
}

// suspect is an endpoint with a proof or a fault.
type suspect struct {
	ep      *endpoints.Endpoint // as in the first scan
	since   time.Time           // time of the scan that started the current interval
	verdict verdict             // its proofs were found in every scan since then
	settled bool                // a full interval has passed and the endpoint was not removed
}

func registerCollector(jobs job.Group, c collector) error {
	if err := c.Config.check(); err != nil {
		return err
	}
	if c.Config.Interval > 0 {
		watchdog.AddRetried(jobs, "collect-endpoints", c.run, time.Second, time.Minute)
	}
	return nil
}

func (c collector) run(ctx context.Context, health cell.Health) error {
	watchdog.Idle(ctx)
	if c.Manager.waitRestored(ctx) != nil {
		return nil // the agent is stopping
	}
	feed, err := c.follow()
	if err != nil {
		return err
	}
	defer feed.close()
	suspects := map[uint16]*suspect{}
	watched := []statedb.TableMeta{c.Devices, c.Manager.endpoints, c.Manager.pods, c.Sources, c.Manager.servers}
	return loop.Run(ctx, c.Manager.db, loop.Options{Tables: watched, Settle: settleCollect}, func(r *loop.Round) error {
		err := c.look(r.Txn, suspects, feed.next(r.Txn, r.Changed, time.Now()), time.Now())
		pause := c.pause(suspects)
		if err != nil {
			health.Degraded("endpoints whose pods may have ended", err)
			pause, feed.looked = c.Config.Interval, time.Time{}
		} else {
			health.OK(report(suspects))
		}
		if done, _ := c.Devices.Initialized(r.Txn); !done {
			feed.looked = time.Time{} // nothing was evaluated, and no event marks an endpoint again whose link is already missing
		}
		r.Within(pause)
		return nil
	})
}

func report(suspects map[uint16]*suspect) string {
	if len(suspects) == 0 {
		return "every endpoint has its link"
	}
	return fmt.Sprintf("checking %d endpoints whose pods may have ended", len(suspects))
}

// pause returns the time until the next scan.
func (c collector) pause(suspects map[uint16]*suspect) time.Duration {
	next := endpointfeed.FullPassInterval // some changes, such as a removed namespace, have no event
	for _, s := range suspects {
		pause := c.Config.Interval
		if s.settled {
			pause *= slowScanFactor
		}
		next = min(next, pause)
	}
	return next
}

// look scans the marked endpoints and the suspects once. With nil marks it scans every endpoint.
func (c collector) look(txn statedb.ReadTxn, suspects map[uint16]*suspect, marked endpointfeed.Marks, now time.Time) error {
	if done, _ := c.Devices.Initialized(txn); !done {
		return nil // initialization of the table triggers the next scan
	}
	var all links // read from the kernel when the table devices lacks a link, because the table may lag
	var errs []error
	kept := map[uint16]bool{}
	for ep := range c.endpointsOf(txn, suspects, marked) {
		if all == nil && !c.observed(txn, ep) {
			var err error
			if all, err = c.Manager.kernel.links(); err != nil {
				return err // without the links no endpoint is evaluated
			}
		}
		v := c.evaluate(txn, ep, all)
		if v.alive && v.evidence == 0 && v.fault == "" {
			errs = append(errs, c.clear(ep))
			continue
		}
		removed, err := c.weigh(suspects, ep, v, now)
		errs = append(errs, err)
		kept[ep.ID] = !removed
	}
	for id := range suspects {
		if !kept[id] {
			delete(suspects, id)
		}
	}
	return some(errs)
}

// some joins at most maxIncomplete errors and the number of the remaining ones. The list may have one error for each endpoint.
func some(errs []error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if more := len(errs) - maxIncomplete; more > 0 {
		errs = append(errs[:maxIncomplete:maxIncomplete], fmt.Errorf("and %d more", more))
	}
	return errors.Join(errs...)
}

// observed reports whether the table devices has the veth of an endpoint with its index and name.
func (c collector) observed(txn statedb.ReadTxn, ep *endpoints.Endpoint) bool {
	device, _, found := c.Devices.Get(txn, devices.ByIndex(ep.HostIfIndex))
	return found && device.Name == ep.HostIfName && device.Type == "veth"
}

// evaluate evaluates one endpoint. All is nil while no link is missing.
func (c collector) evaluate(txn statedb.ReadTxn, ep *endpoints.Endpoint, all links) (v verdict) {
	there, gone := true, false
	if all != nil && !c.observed(txn, ep) {
		there, gone, v.fault = all.find(ep)
	}
	if gone {
		v.evidence |= linkGone
	}
	found, lost := c.Manager.kernel.namespace(ep.NetnsPath).evaluate(ep, c.Manager.boot)
	if lost {
		v.evidence |= namespaceGone
	}
	v.alive = there || found
	if c.podConfirmedGone(txn, ep) {
		v.evidence |= podGone
	}
	return v
}

// podConfirmedGone reports whether a responsive API server has no such pod on this node, or a younger sandbox of the pod is attached. Manifests, a copy of the pods
// from disk, and a watch without a responsive server prove nothing: manifests need not list every container.
func (c collector) podConfirmedGone(txn statedb.ReadTxn, ep *endpoints.Endpoint) bool {
	m := c.Manager
	source, _, _ := c.Sources.Get(txn, sources.ByTable(m.pods.Name()))
	if ep.K8sPodName == "" || source.State != sources.Synced || m.live == nil || apiservers.AllUnreachable(txn, m.servers) {
		return false
	}
	pod, _, found := m.pods.Get(txn, k8s.PodByName(ep.PodName()))
	if !found || !pod.HasUID(ep.K8sUID) {
		return true
	}
	for other := range m.endpoints.List(txn, endpoints.ByPod(ep.PodName())) {
		if other.IfName == ep.IfName && other.ContainerID != ep.ContainerID && other.Quarantine == "" &&
			endpoints.CompareAge(other, ep) > 0 && c.observed(txn, other) {
			return true
		}
	}
	return false
}

// weigh combines a verdict with the previous ones. A proof counts only if all verdicts of at least one interval contain it. A verdict with enough proofs starts
// a new interval when the previous verdicts had too few, so an API server that responds late delays the removal by one interval only.
func (c collector) weigh(suspects map[uint16]*suspect, ep *endpoints.Endpoint, v verdict, now time.Time) (removed bool, err error) {
	s := suspects[ep.ID]
	if s == nil || !same(s.ep, ep) || v.ended() && !s.verdict.ended() {
		suspects[ep.ID] = &suspect{ep: ep, since: now, verdict: v}
		return false, nil
	}
	s.verdict.evidence &= v.evidence
	s.verdict.alive = s.verdict.alive || v.alive
	s.verdict.fault = v.fault
	if now.Sub(s.since) < c.Config.Interval {
		return false, nil
	}
	sure := s.verdict
	*s = suspect{ep: s.ep, since: now, verdict: v, settled: true}
	if sure.ended() && collectable(ep) {
		return true, c.collect(ep, sure.evidence)
	}
	return false, c.Manager.mark(ep, sure.fault, sure.doubt(ep))
}

// clear removes the doubt of an endpoint and a quarantine because of its link.
func (c collector) clear(ep *endpoints.Endpoint) error {
	if ep.Doubt == "" && !forItsLink(ep) {
		return nil
	}
	return c.Manager.mark(ep, "", "")
}

// collect removes an endpoint, logs the removal and counts it.
func (c collector) collect(ep *endpoints.Endpoint, ev evidence) error {
	if err := c.Manager.remove(ep); err != nil {
		return fmt.Errorf("remove endpoint %d (%s), whose pod has ended: %w", ep.ID, describe(ep), err)
	}
	c.Log.Info("Removed an endpoint whose pod has ended without a DEL", "endpointID", ep.ID, "attachment", ep.AttachmentID(),
		"pod", ep.PodName(), "ipv4", ep.IPv4, "ipv6", ep.IPv6, "proofs", ev.String())
	db := c.Manager.db
	txn := db.WriteTxn(c.Collected)
	defer txn.Abort()
	row, _, _ := c.Collected.Get(txn, collectedendpoints.ByProofs(ev.String()))
	row.Proofs, row.Last, row.Time = ev.String(), describe(ep), time.Now()
	row.Count++
	if _, _, err := c.Collected.Insert(txn, row); err != nil {
		return fmt.Errorf("count a removed endpoint: %w", err)
	}
	txn.Commit()
	return nil
}

// mark stores the result of scans in the row of an endpoint. A fault puts the endpoint in quarantine; an empty fault ends a quarantine because of the link. A
// quarantine for another reason stays.
func (m *manager) mark(ep *endpoints.Endpoint, fault, doubt string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	row, _, found := m.endpoints.Get(m.db.ReadTxn(), endpoints.ByID(ep.ID))
	if !found || !same(row, ep) {
		return nil
	}
	marked := row.Clone()
	if marked.Quarantine == "" || forItsLink(marked) {
		marked.Quarantine = fault
	}
	if marked.Doubt = doubt; marked.Quarantine != "" {
		marked.Doubt = "" // a quarantined endpoint does not work; doubt is for working ones
	}
	if marked.Equal(row) {
		return nil
	}
	return m.store(marked)
}
