package metrics

import (
	"strconv"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/waggle-net/waggle/pkg/datapath/events"
	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/bpfmaps"
	"github.com/waggle-net/waggle/pkg/tables/collectedendpoints"
	"github.com/waggle-net/waggle/pkg/tables/configs"
	"github.com/waggle-net/waggle/pkg/tables/conntrack"
	"github.com/waggle-net/waggle/pkg/tables/driftrepairs"
	"github.com/waggle-net/waggle/pkg/tables/endpointstates"
	"github.com/waggle-net/waggle/pkg/tables/flows"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
	"github.com/waggle-net/waggle/pkg/tables/health"
	"github.com/waggle-net/waggle/pkg/tables/ipamaddresses"
	"github.com/waggle-net/waggle/pkg/tables/ipamusage"
	"github.com/waggle-net/waggle/pkg/tables/natusage"
	"github.com/waggle-net/waggle/pkg/tables/neighborlimits"
	"github.com/waggle-net/waggle/pkg/tables/nodehealth"
	"github.com/waggle-net/waggle/pkg/tables/nodepaths"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/nodeviews"
	"github.com/waggle-net/waggle/pkg/tables/pathtests"
	"github.com/waggle-net/waggle/pkg/tables/policies"
	"github.com/waggle-net/waggle/pkg/tables/policyentries"
	"github.com/waggle-net/waggle/pkg/tables/policyprogress"
	"github.com/waggle-net/waggle/pkg/tables/refusedclaims"
	"github.com/waggle-net/waggle/pkg/tables/servicemapusage"
	"github.com/waggle-net/waggle/pkg/tables/services"
)

type tableParams struct {
	cell.In

	Config      Config
	Registry    *registry
	DB          *statedb.DB
	Health      statedb.Table[health.Status]
	Options     statedb.Table[configs.Config]
	Endpoints   statedb.Table[*endpointstates.EndpointState]
	Addresses   statedb.Table[ipamaddresses.Address]
	Usage       statedb.Table[ipamusage.Usage]
	Collected   statedb.Table[collectedendpoints.Collected]
	Repairs     statedb.Table[driftrepairs.Repair]
	Maps        statedb.Table[*bpfmaps.Map]
	Refused     statedb.Table[refusedclaims.Refused]
	Nodes       statedb.Table[*nodes.Node]
	Neighbors   statedb.Table[neighborlimits.Limit]
	NodeHealth  statedb.Table[*nodehealth.Path]
	NodeViews   statedb.Table[*nodeviews.View]
	PathTests   statedb.Table[*pathtests.Test]
	NodePaths   statedb.Table[*nodepaths.Path]
	Flows       statedb.Table[conntrack.Map]
	Translated  statedb.Table[natusage.Usage]
	Policies    statedb.Table[*policies.Policy]
	Compiled    statedb.Table[*policyentries.Policy]
	Progress    statedb.Table[policyprogress.Progress]
	Recent      statedb.Table[*flows.Flow]
	Services    statedb.Table[*services.Service]
	Frontends   statedb.Table[*frontends.Frontend]
	Backends    statedb.Table[*backends.Backend]
	ServiceMaps statedb.Table[servicemapusage.Usage]
	Counters    counters
	Guard       guard
}

func registerTables(p tableParams) error {
	if !p.Config.enabled() {
		return nil
	}
	return p.Registry.Register(newCollector(p))
}

// collector reads one snapshot of the tables at each scrape.
type collector struct {
	tableParams
	descs      map[string]*prometheus.Desc
	readErrors prometheus.Counter
}

func newCollector(p tableParams) *collector {
	c := &collector{tableParams: p, descs: map[string]*prometheus.Desc{}}
	for _, d := range []Definition{hiveStatus, configChanged, configFaulty, tableObjects, tableRevision, endpointsByState, ipamAddresses, ipamCapacity, ipamEvents,
		policyObjects, policyEntries, policyStuck, policyNotEnforced, policyFlows, policyRevision,
		endpointsCollected, driftRepaired, claimsRefused, nodesAll, nodesRefused, neighborEntries, neighborLimit, neighborOverflows, healthStatus, unreachableNodes, unreachableEndpoints, viewsDiffer, pathTests, pathFaults, nodePaths, flowEntries, flowDeleted, flowSignals, natShareUsed, natShareRefused, guardPackets,
		serviceCount, serviceProblems, serviceFrontends, serviceFailed, serviceRefused, serviceBackends, serviceMapEntries, serviceMapRefused,
		mapMaxEntries, mapMemory, packets, packetBytes, vniDiffers} {
		c.descs[d.Name] = d.desc()
	}
	c.readErrors = prometheus.NewCounter(prometheus.CounterOpts{Name: scrapeErrors.Name, Help: scrapeErrors.Help})
	return c
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		out <- d
	}
	out <- c.readErrors.Desc()
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	txn := c.DB.ReadTxn()
	c.collectTables(out, txn)
	c.collectHealth(out, txn)
	c.collectOptions(out, txn)
	c.collectEndpoints(out, txn)
	c.collectAddresses(out, txn)
	c.collectUsage(out, txn)
	c.collectCollected(out, txn)
	c.collectRepairs(out, txn)
	for row := range c.Refused.All(txn) {
		c.send(out, claimsRefused, float64(row.Count), string(row.Reason))
	}
	c.collectNodes(out, txn)
	c.collectNeighbors(out, txn)
	c.collectNodeHealth(out, txn)
	c.collectPathTests(out, txn)
	c.collectNodePaths(out, txn)
	c.collectMaps(out, txn)
	c.collectFlows(out, txn)
	c.collectPolicies(out, txn)
	c.collectServices(out, txn)
	c.collectPackets(out)
	c.collectGuard(out)
	out <- c.readErrors
}

func (c *collector) send(out chan<- prometheus.Metric, d Definition, value float64, labels ...string) {
	kind := prometheus.GaugeValue
	if d.Kind == counter {
		kind = prometheus.CounterValue
	}
	out <- prometheus.MustNewConstMetric(c.descs[d.Name], kind, value, labels...)
}

func (c *collector) collectTables(out chan<- prometheus.Metric, txn statedb.ReadTxn) {
	for _, t := range c.DB.GetTables(txn) {
		c.send(out, tableObjects, float64(t.NumObjects(txn)), t.Name())
		c.send(out, tableRevision, float64(t.Revision(txn)), t.Name())
	}
}

// collectHealth sends every level, also with the value 0.
func (c *collector) collectHealth(out chan<- prometheus.Metric, txn statedb.ReadTxn) {
	count := map[health.Level]int{health.OK: 0, health.Degraded: 0, health.Stopped: 0}
	for row := range c.Health.All(txn) {
		count[row.Level]++
	}
	for level, n := range count {
		c.send(out, hiveStatus, float64(n), string(level))
	}
}

// collectOptions sends both values also when they are 0.
func (c *collector) collectOptions(out chan<- prometheus.Metric, txn statedb.ReadTxn) {
	changed, faulty := 0, 0
	for row := range c.Options.All(txn) {
		if row.Changed {
			changed++
		}
		if row.Problem != "" {
			faulty = 1
		}
	}
	c.send(out, configChanged, float64(changed))
	c.send(out, configFaulty, float64(faulty))
}

func (c *collector) collectEndpoints(out chan<- prometheus.Metric, txn statedb.ReadTxn) {
	count := map[endpointstates.State]int{endpointstates.Ready: 0}
	for row := range c.Endpoints.All(txn) {
		count[row.State]++
	}
	for state, n := range count {
		c.send(out, endpointsByState, float64(n), string(state))
	}
}

func (c *collector) collectAddresses(out chan<- prometheus.Metric, txn statedb.ReadTxn) {
	type key struct{ family, state string }
	count := map[key]int{}
	for row := range c.Addresses.All(txn) {
		family := "ipv6"
		if row.Addr.Is4() {
			family = "ipv4"
		}
		count[key{family, string(row.State)}]++
	}
	for k, n := range count {
		c.send(out, ipamAddresses, float64(n), k.family, k.state)
	}
}

func (c *collector) collectUsage(out chan<- prometheus.Metric, txn statedb.ReadTxn) {
	for row := range c.Usage.All(txn) {
		if capacity, err := strconv.ParseFloat(row.Capacity, 64); err == nil {
			c.send(out, ipamCapacity, capacity, row.Family)
		}
		for action, n := range map[string]uint64{"allocate": row.Allocations, "release": row.Releases,
			"expire": row.Expirations, "reuse-early": row.EarlyReuses} {
			c.send(out, ipamEvents, float64(n), row.Family, action)
		}
	}
}

func (c *collector) collectCollected(out chan<- prometheus.Metric, txn statedb.ReadTxn) {
	for row := range c.Collected.All(txn) {
		c.send(out, endpointsCollected, float64(row.Count), row.Proofs)
	}
}

// collectRepairs sends every kind of repair, also with the value 0.
func (c *collector) collectRepairs(out chan<- prometheus.Metric, txn statedb.ReadTxn) {
	for _, kind := range driftrepairs.Kinds {
		n := uint64(0)
		for row := range c.Repairs.List(txn, driftrepairs.ByKind(kind)) {
			n += row.Count
		}
		c.send(out, driftRepaired, float64(n), string(kind))
	}
}

func (c *collector) collectMaps(out chan<- prometheus.Metric, txn statedb.ReadTxn) {
	for row := range c.Maps.All(txn) {
		c.send(out, mapMaxEntries, float64(row.MaxEntries), row.Name)
		c.send(out, mapMemory, float64(row.Memory), row.Name)
	}
}

func (c *collector) collectFlows(out chan<- prometheus.Metric, txn statedb.ReadTxn) {
	for row := range c.Flows.All(txn) {
		c.send(out, flowEntries, float64(row.Entries), row.Name)
		for reason, n := range map[string]uint64{"expired": row.Expired, "orphaned": row.Orphaned, "unserved": row.Unserved, "flushed": row.Flushed} {
			c.send(out, flowDeleted, float64(n), row.Name, reason)
		}
		for reason, n := range map[string]uint64{"full": row.Full, "share": row.Share} {
			c.send(out, flowSignals, float64(n), row.Name, reason)
		}
	}
	for row := range c.Translated.All(txn) {
		id := strconv.Itoa(int(row.Endpoint))
		c.send(out, natShareUsed, float64(row.Percent), id, row.Pod)
		c.send(out, natShareRefused, float64(row.Refused), id, row.Pod)
	}
}

// collectGuard omits the counters if they cannot be read, as collectPackets does.
func (c *collector) collectGuard(out chan<- prometheus.Metric) {
	dropped, err := c.Guard()
	if err != nil {
		c.readErrors.Inc()
		return
	}
	c.send(out, guardPackets, float64(dropped.Unmarked.Packets), "unmarked")
	c.send(out, guardPackets, float64(dropped.NodeSource.Packets), "node-source")
}

// collectPackets omits the counters if they cannot be read: a counter that falls to 0 would look like a restart of the datapath.
func (c *collector) collectPackets(out chan<- prometheus.Metric) {
	read, err := c.Counters.Read()
	if err != nil {
		c.readErrors.Inc()
		return
	}
	differs := uint64(0)
	for _, v := range read {
		if v.reason == events.VNIDiffers.String() { // the verdicts of these packets are counted as well
			differs += v.packets
			continue
		}
		c.send(out, packets, float64(v.packets), v.reason, v.direction)
		c.send(out, packetBytes, float64(v.bytes), v.reason, v.direction)
	}
	c.send(out, vniDiffers, float64(differs))
}
