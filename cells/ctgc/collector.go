package ctgc

import (
	"context"
	"fmt"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/ctmap"
	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/natmap"
	"github.com/waggle-net/waggle/pkg/serving"
	"github.com/waggle-net/waggle/pkg/settings"
	"github.com/waggle-net/waggle/pkg/tables/conntrack"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/ipamaddresses"
	"github.com/waggle-net/waggle/pkg/tables/masquerade"
	"github.com/waggle-net/waggle/pkg/tables/natusage"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
	clusternodes "github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/nodetraffic"
)

const (
	// calmPause and removalPause are the pauses between two slices of a pass. Expired flows block nothing; quarantined addresses wait for the deletion of flows
	// of removed endpoints.
	calmPause    = 5 * time.Millisecond
	removalPause = time.Millisecond
	// minSpacing is the minimum time between the end of a pass and the start of the next one that programs request: half of the maximum wait of a refused flow.
	minSpacing = 500 * time.Millisecond
	// removalSpacing is the same for removed endpoints: a node that loses many makes one pass for all.
	removalSpacing = time.Second
)

// collector makes passes over the maps of flows.
type collector struct {
	kernel     kernel
	nat        natKernel
	db         *statedb.DB
	table      statedb.RWTable[conntrack.Map]
	usage      statedb.RWTable[natusage.Usage]
	endpoints  statedb.Table[*endpoints.Endpoint]
	addresses  statedb.Table[ipamaddresses.Address]
	nodes      statedb.Table[nodeaddresses.Address]
	devices    statedb.Table[devices.Address]
	grace      grace
	exclusions statedb.Table[*masquerade.Exclusion]
	served     *served
	agent      settings.Agent
	cluster    statedb.Table[*clusternodes.Node]
	answers    statedb.RWTable[*nodetraffic.Traffic]
	percent    int // of the translated flows: the quota of one endpoint
	heard      heard

	pace  pace
	began time.Time // start of the last pass; zero before the first
	ended time.Time
	known *locals // when that pass began; nil if not all endpoints were known then

	observed     time.Time // start of the last pass that recorded nodes; zero before the first
	observedTick uint32    // the same in ticks of the kernel
}

type params struct {
	cell.In

	Config     Config
	Settings   settings.Agent
	Kernel     kernel
	Nat        natKernel
	DB         *statedb.DB
	Table      statedb.RWTable[conntrack.Map]
	Usage      statedb.RWTable[natusage.Usage]
	Endpoints  statedb.Table[*endpoints.Endpoint]
	Addresses  statedb.Table[ipamaddresses.Address]
	Nodes      statedb.Table[nodeaddresses.Address]
	Devices    statedb.Table[devices.Address]
	Cluster    statedb.Table[*clusternodes.Node]
	Traffic    statedb.RWTable[*nodetraffic.Traffic]
	Grace      grace
	Exclusions statedb.Table[*masquerade.Exclusion]
	Serving    serving.Tables
}

func newCollector(p params) (*collector, error) {
	if err := p.Config.check(); err != nil {
		return nil, err
	}
	return &collector{kernel: p.Kernel, nat: p.Nat, db: p.DB, table: p.Table, usage: p.Usage, endpoints: p.Endpoints,
		addresses: p.Addresses, nodes: p.Nodes, devices: p.Devices, grace: p.Grace, exclusions: p.Exclusions, served: &served{tables: p.Serving}, percent: p.Settings.EndpointShare,
		agent: p.Settings, cluster: p.Cluster, answers: p.Traffic,
		heard: heard{wake: make(chan struct{}, 1)}, pace: newPace(p.Config)}, nil
}

func register(jobs job.Group, c *collector) {
	heartbeat.AddRetried(jobs, "collect-flows", c.run, minRetry, maxRetry)
	heartbeat.AddRetried(jobs, "collect-services", c.sweep, minRetry, maxRetry)
	heartbeat.AddRetried(jobs, "collect-lost-addresses", c.followNode, minRetry, maxRetry)
	heartbeat.AddRetried(jobs, "collect-kept-addresses", c.followExclusions, minRetry, maxRetry)
	heartbeat.AddRetried(jobs, "hear-signals", c.receiveSignals, minRetry, maxRetry)
}

// run makes a pass at once, and again at each request and interval.
func (c *collector) run(ctx context.Context, health cell.Health) error {
	pause := time.Duration(0)
	for {
		heartbeat.Busy(ctx)
		p := &pass{collector: c, pause: pause}
		last := c.began
		c.began = time.Now()
		if err := p.run(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("collect expired flows: %w", err)
		}
		c.ended, c.known = time.Now(), p.known
		if !last.IsZero() {
			c.pace.adapt(p.ratio(), c.began.Sub(last))
		}
		c.publish(p)
		if p.traffic != nil {
			p.traffic.publish(c.db, c.answers)
		}
		health.OK(c.report(p))
		var err error
		if pause, err = c.await(ctx); err != nil {
			return nil //nolint:nilerr // the agent stops
		}
	}
}

func (c *collector) report(p *pass) string {
	flows, translated := uint64(0), uint64(0)
	for _, m := range ctmap.Maps() {
		flows += p.found[m.Name].entries
	}
	for _, m := range natmap.Maps() {
		translated += p.found[m.Name].entries
	}
	return fmt.Sprintf("%d flows, %d NAT entries; next pass in %s", flows, translated, c.interval())
}

// publish writes the table conntrack, and with [collector.publishUsage] the table nat-usage.
func (c *collector) publish(p *pass) {
	txn := c.db.WriteTxn(c.table, c.usage)
	defer txn.Commit()
	for _, name := range conntrack.Maps() {
		row, _, _ := c.table.Get(txn, conntrack.ByName(name))
		f := p.found[name]
		row.Name, row.Entries, row.MaxEntries, row.Took = name, f.entries, f.capacity, f.took
		row.Expired += f.expired
		row.Orphaned += f.orphaned
		row.Unserved += f.unserved
		signals := c.heard.counts(name)
		row.Full, row.Share = signals.full, signals.share
		if p.known != nil {
			row.Began = c.began
		}
		_, _, _ = c.table.Insert(txn, row)
	}
	c.publishUsage(txn, p)
}

// publishUsage writes a row for each endpoint that has translated flows or was refused some.
func (c *collector) publishUsage(txn statedb.WriteTxn, p *pass) {
	rejected := c.heard.rejections()
	for id := range p.translations.endpoints {
		if _, heard := rejected[id]; !heard {
			rejected[id] = 0
		}
	}
	delete(rejected, 0) // no endpoint
	for row := range c.usage.All(txn) {
		if _, has := rejected[row.Endpoint]; !has {
			_, _, _ = c.usage.Delete(txn, row)
		}
	}
	for id, n := range rejected {
		ep, _, found := c.endpoints.Get(txn, endpoints.ByID(id))
		if !found {
			_, _, _ = c.usage.Delete(txn, natusage.Usage{Endpoint: id})
			c.heard.forget(id)
			continue
		}
		flows := p.translations.endpoints[id]
		row := natusage.Usage{Endpoint: id, Pod: ep.PodName(), IPv4: flows.Ipv4, IPv6: flows.Ipv6, Refused: n, Percent: used(flows,
			natmap.Share(p.found[bpf.MapNat4].capacity, c.percent), natmap.Share(p.found[bpf.MapNat6].capacity, c.percent))}
		if old, _, had := c.usage.Get(txn, natusage.ByEndpoint(id)); !had || old != row {
			_, _, _ = c.usage.Insert(txn, row)
		}
	}
}

// used returns the used part of an endpoint's quota in percent, in the family with the larger part.
func used(flows bpf.NatCount, share4, share6 uint32) int {
	of := func(n int32, share uint32) int { return int(100 * uint64(max(n, 0)) / uint64(share)) }
	return max(of(flows.Ipv4, share4), of(flows.Ipv6, share6))
}

// publishFlushed adds the entries that an operator has deleted to the counters.
func (c *collector) publishFlushed(of map[string]uint64) {
	txn := c.db.WriteTxn(c.table)
	defer txn.Commit()
	for name, n := range of {
		row, _, _ := c.table.Get(txn, conntrack.ByName(name))
		row.Name = name
		row.Flushed += n
		_, _, _ = c.table.Insert(txn, row)
	}
}

// await waits until a pass is required and returns the pause between its slices.
func (c *collector) await(ctx context.Context) (time.Duration, error) {
	timer := time.NewTimer(time.Until(c.began.Add(c.interval())))
	defer timer.Stop()
	for {
		heartbeat.Busy(ctx)
		removed, changes := c.removals()
		if removed {
			return c.space(ctx, removalSpacing, removalPause)
		}
		heartbeat.Idle(ctx)
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-timer.C:
			return calmPause, nil
		case <-c.heard.wake:
			return c.space(ctx, minSpacing, 0)
		case <-changes.endpoints:
		case <-changes.addresses:
		}
		if err := c.settle(ctx); err != nil {
			return 0, err
		}
	}
}

// settle delays the next look at the tables, so that a burst of pods causes one pass. A signal ends the delay.
func (c *collector) settle(ctx context.Context) error {
	timer := time.NewTimer(removalSpacing / 4)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-c.heard.wake:
		c.heard.hurry() // keep the signal for the next wait
	case <-timer.C:
	}
	return nil
}

// space waits until the last pass ended at least the given time ago. A signal shortens the wait to minSpacing and removes the pauses. The pass that follows
// answers all requests before the return.
func (c *collector) space(ctx context.Context, least, pause time.Duration) (time.Duration, error) {
	urgent := pause == 0
	for {
		wait := time.Until(c.ended.Add(least))
		if wait <= 0 {
			break
		}
		timer := time.NewTimer(wait)
		wake := c.heard.wake
		if urgent {
			wake = nil // the signal has been noticed
		}
		select {
		case <-ctx.Done():
			timer.Stop()
			return 0, ctx.Err()
		case <-timer.C:
		case <-wake:
			timer.Stop()
			urgent, least, pause = true, minSpacing, 0
		}
	}
	if urgent {
		c.drain()
	}
	return pause, nil
}

// drain removes a pending request, which the next pass answers.
func (c *collector) drain() {
	select {
	case <-c.heard.wake:
	default:
	}
}

// watched channels are closed when the result of [collector.removals] may have changed. A nil channel is never closed.
type watched struct{ endpoints, addresses <-chan struct{} }

// removals reports whether a removal requires a pass: an endpoint that the last pass knew has been removed, or an address is quarantined that was in use when
// the last pass began.
func (c *collector) removals() (bool, watched) {
	txn := c.db.ReadTxn()
	now := readLocals(txn, c.endpoints)
	if now == nil {
		_, initialized := c.endpoints.Initialized(txn)
		return false, watched{endpoints: initialized}
	}
	if c.known == nil || c.known.lost(now) {
		return true, watched{}
	}
	rows, changed := c.addresses.AllWatch(txn)
	for row := range rows {
		if row.State == ipamaddresses.Quarantined && !c.began.After(row.Since) {
			return true, watched{}
		}
	}
	return false, watched{now.changed, changed}
}
