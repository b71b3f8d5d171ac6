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
	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/tables/apiservers"
	"github.com/waggle-net/waggle/pkg/tables/collectedendpoints"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

const (
	// settleCollect turns a burst of changed links into one look.
	settleCollect = time.Second
	// patience is how much longer than the interval those are left alone that were looked at twice and must stay.
	patience = 6
)

// collector looks for endpoints whose pods have ended without a DEL, and for those that are not as they should be. See
// doc.go for the rule.
type collector struct {
	cell.In

	Log       *slog.Logger
	Config    Config
	Manager   *manager
	Devices   statedb.Table[*devices.Device]
	Sources   statedb.Table[sources.Source]
	Collected statedb.RWTable[collectedendpoints.Collected]
}

// suspect is an endpoint that something speaks against.
type suspect struct {
	ep      *endpoints.Endpoint // as it was at the first look
	since   time.Time           // of the look that counts
	verdict verdict             // its proofs are those of every look since then
	settled bool                // was looked at twice, and stays
}

func registerCollector(jobs job.Group, c collector) error {
	if err := c.Config.check(); err != nil {
		return err
	}
	if c.Config.Interval > 0 {
		heartbeat.AddRetried(jobs, "collect-endpoints", c.run, time.Second, time.Minute)
	}
	return nil
}

func (c collector) run(ctx context.Context, health cell.Health) error {
	heartbeat.Idle(ctx)
	if c.Manager.waitRestored(ctx) != nil {
		return nil // the agent stops
	}
	feed, err := c.follow()
	if err != nil {
		return err
	}
	defer feed.close()
	suspects := map[uint16]*suspect{}
	for {
		txn := heartbeat.Snapshot(ctx, c.Manager.db, c.Devices, c.Manager.endpoints, c.Manager.pods, c.Sources, c.Manager.servers)
		changed := statedb.NewWatchSet()
		err := c.look(txn, suspects, feed.next(txn, changed, time.Now()), time.Now())
		pause := c.pause(suspects)
		if err != nil {
			health.Degraded("endpoints whose pods may have ended", err)
			pause, feed.looked = c.Config.Interval, time.Time{}
		} else {
			health.OK(report(suspects))
		}
		if done, _ := c.Devices.Initialized(txn); !done {
			feed.looked = time.Time{} // nothing was judged, and an endpoint whose link is gone is not marked again
		}
		heartbeat.IdleFor(ctx, pause)
		if !wait(ctx, changed, pause) {
			return nil
		}
	}
}

func report(suspects map[uint16]*suspect) string {
	if len(suspects) == 0 {
		return "every endpoint has its link"
	}
	return fmt.Sprintf("looking at %d endpoints whose pods may have ended", len(suspects))
}

// wait returns when something has changed or the pause is over, and false when the agent stops.
func wait(ctx context.Context, changed *statedb.WatchSet, pause time.Duration) bool {
	limited, cancel := context.WithTimeout(ctx, pause)
	defer cancel()
	_, _ = changed.Wait(limited, settleCollect) // it fails when a context ends; which one, is asked next
	return ctx.Err() == nil
}

// pause is the time to the next look.
func (c collector) pause(suspects map[uint16]*suspect) time.Duration {
	next := endpointfeed.FullPassInterval // nothing announces, for instance, that a namespace is gone
	for _, s := range suspects {
		pause := c.Config.Interval
		if s.settled {
			pause *= patience
		}
		next = min(next, pause)
	}
	return next
}

// look judges the marked endpoints once, and the suspects; without marks every endpoint.
func (c collector) look(txn statedb.ReadTxn, suspects map[uint16]*suspect, marked endpointfeed.Marks, now time.Time) error {
	if done, _ := c.Devices.Initialized(txn); !done {
		return nil // the change of the table brings us here again
	}
	var all links // read when a link is missing, for what was observed may be late
	var errs []error
	kept := map[uint16]bool{}
	for ep := range c.endpointsOf(txn, suspects, marked) {
		if all == nil && !c.observed(txn, ep) {
			var err error
			if all, err = c.Manager.kernel.links(); err != nil {
				return err // nothing is known, and so nothing is judged
			}
		}
		v := c.judge(txn, ep, all)
		if v.alive && v.proofs == 0 && v.fault == "" {
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

// some joins the first errors of a list that may be as long as there are endpoints.
func some(errs []error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if more := len(errs) - maxIncomplete; more > 0 {
		errs = append(errs[:maxIncomplete:maxIncomplete], fmt.Errorf("and %d more", more))
	}
	return errors.Join(errs...)
}

// observed tells whether the link of an endpoint was seen as it should be.
func (c collector) observed(txn statedb.ReadTxn, ep *endpoints.Endpoint) bool {
	device, _, found := c.Devices.Get(txn, devices.ByIndex(ep.HostIfIndex))
	return found && device.Name == ep.HostIfName && device.Type == "veth"
}

// judge looks at one endpoint. All is nil while no link is missing.
func (c collector) judge(txn statedb.ReadTxn, ep *endpoints.Endpoint, all links) (v verdict) {
	there, gone := true, false
	if all != nil && !c.observed(txn, ep) {
		there, gone, v.fault = all.of(ep)
	}
	if gone {
		v.proofs |= linkGone
	}
	found, lost := c.Manager.kernel.namespace(ep.NetnsPath).judge(ep, c.Manager.boot)
	if lost {
		v.proofs |= namespaceGone
	}
	v.alive = there || found
	if c.podKnownGone(txn, ep) {
		v.proofs |= podGone
	}
	return v
}

// podKnownGone is true only when an API server that answers says so: neither manifests, which need not name every
// container, nor a copy of earlier, nor a watch without a server is a proof.
func (c collector) podKnownGone(txn statedb.ReadTxn, ep *endpoints.Endpoint) bool {
	m := c.Manager
	source, _, _ := c.Sources.Get(txn, sources.ByTable(m.pods.Name()))
	if ep.K8sPodName == "" || source.State != sources.Synced || m.live == nil || apiservers.Away(txn, m.servers) {
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

// weigh compares a verdict with the one before. Only what both say counts, and only when they are an interval apart. A
// verdict that is enough where those before were not begins anew: when the API server is heard of late, nothing else is waited for.
func (c collector) weigh(suspects map[uint16]*suspect, ep *endpoints.Endpoint, v verdict, now time.Time) (removed bool, err error) {
	s := suspects[ep.ID]
	if s == nil || !same(s.ep, ep) || v.ended() && !s.verdict.ended() {
		suspects[ep.ID] = &suspect{ep: ep, since: now, verdict: v}
		return false, nil
	}
	s.verdict.proofs &= v.proofs
	s.verdict.alive = s.verdict.alive || v.alive
	s.verdict.fault = v.fault
	if now.Sub(s.since) < c.Config.Interval {
		return false, nil
	}
	sure := s.verdict
	*s = suspect{ep: s.ep, since: now, verdict: v, settled: true}
	if sure.ended() && collectable(ep) {
		return true, c.collect(ep, sure.proofs)
	}
	return false, c.Manager.mark(ep, sure.fault, sure.doubt(ep))
}

// clear takes back what an earlier look had held against an endpoint.
func (c collector) clear(ep *endpoints.Endpoint) error {
	if ep.Doubt == "" && !forItsLink(ep) {
		return nil
	}
	return c.Manager.mark(ep, "", "")
}

// collect removes an endpoint, logs and counts it.
func (c collector) collect(ep *endpoints.Endpoint, proofs proof) error {
	if err := c.Manager.remove(ep); err != nil {
		return fmt.Errorf("remove endpoint %d (%s), whose pod has ended: %w", ep.ID, describe(ep), err)
	}
	c.Log.Info("Removed an endpoint whose pod has ended without a DEL", "endpointID", ep.ID, "attachment", ep.AttachmentID(),
		"pod", ep.PodName(), "ipv4", ep.IPv4, "ipv6", ep.IPv6, "proofs", proofs.String())
	db := c.Manager.db
	txn := db.WriteTxn(c.Collected)
	defer txn.Abort()
	row, _, _ := c.Collected.Get(txn, collectedendpoints.ByProofs(proofs.String()))
	row.Proofs, row.Last, row.Time = proofs.String(), describe(ep), time.Now()
	row.Count++
	if _, _, err := c.Collected.Insert(txn, row); err != nil {
		return fmt.Errorf("count a removed endpoint: %w", err)
	}
	txn.Commit()
	return nil
}

// mark stores what looks found about an endpoint: fault puts it in quarantine, or takes it out when it is empty and its
// link was why it was there. A quarantine for another reason stays.
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
		marked.Doubt = "" // it does not work
	}
	if marked.Equal(row) {
		return nil
	}
	return m.store(marked)
}
