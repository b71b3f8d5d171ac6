package services

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/gaissmai/bart"

	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/serviceannotations"
	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/services"
)

// controller is the one loop of the cell. What rows tell is kept nowhere else: here stands only what no row has.
type controller struct {
	params
	in    *inputs
	world *world
	alive func() // says that a pass goes on: after each piece of work of which there is a known number

	frontendIDs, backendIDs *ids

	queue  []string // services that must be computed
	queued map[string]bool

	clusterIPs map[netip.Addr]int                       // how many Services have it, those that others serve too
	elsewhere  map[string][]netip.Addr                  // ClusterIPs of Services that have no row, because others serve them
	external   bart.Table[map[string]bool]              // services that want an address, in force or not
	externalOf map[string][]netip.Addr                  // the same by service
	placed     map[string]bool                          // services that depend on addresses of this node
	contests   map[loadbalancer.Address][]contender     // of addresses that several claim: all of them, the owner first
	lost       map[string]map[loadbalancer.Address]bool // the same by service, but for owners
	models     map[string]*model                        // of this pass
	computed   bool                                     // the first pass is committed
	complete   bool                                     // the tables are
	synced     bool                                     // all inputs are the sources' own

	portion int              // services in one commit of the first pass
	nothing services.Service // what a service was that had no row
}

// portion lets the maps be written while the rest of the services is computed.
const portion = 2048

func newController(p params) *controller {
	return &controller{params: p, alive: func() {}, queued: map[string]bool{}, clusterIPs: map[netip.Addr]int{}, elsewhere: map[string][]netip.Addr{},
		externalOf: map[string][]netip.Addr{}, placed: map[string]bool{}, contests: map[loadbalancer.Address][]contender{},
		lost: map[string]map[loadbalancer.Address]bool{}, portion: portion}
}

// run follows changes at once: nothing waits for a burst to end, and what comes meanwhile is taken together.
func (c *controller) run(ctx context.Context, health cell.Health) error {
	if !c.Rules.agent.KubeProxyReplacement {
		txn := c.writeTxn()
		c.Initialize.all(txn)
		txn.Commit()
		health.OK("off: --kube-proxy-replacement=false")
		return nil
	}
	c.alive = func() { heartbeat.Busy(ctx) }
	if err := c.restore(); err != nil {
		health.Degraded("the maps of services cannot be read; what they say stays in force", err)
		return err
	}
	for {
		txn := heartbeat.Snapshot(ctx, c.DB, c.KubernetesServices, c.Slices, c.Pods, c.NodeAddresses)
		changed := statedb.NewWatchSet()
		c.in.read(txn, changed, c.concern, c.concernWithin)
		if waiting := c.in.waiting(txn, changed); waiting != "" {
			health.OK("waits for " + waiting)
		} else {
			if err := c.pass(txn, changed); err != nil {
				health.Degraded("compute services", err)
				return err
			}
			now := c.DB.ReadTxn()
			if err := c.Holders.keep(now, c); err != nil { // with the next change again
				health.Degraded("keep for the next run who has addresses that several claim", err)
			} else {
				health.OK(fmt.Sprintf("%d services, %d frontends, %d backends", c.Services.NumObjects(now), c.Frontends.NumObjects(now),
					c.Backends.NumObjects(now)))
			}
		}
		heartbeat.Idle(ctx)
		if _, err := changed.Wait(ctx, 0); err != nil {
			c.in.close()
			return nil // stopping
		}
	}
}

func (c *controller) writeTxn() statedb.WriteTxn {
	return c.DB.WriteTxn(c.Services, c.Frontends, c.Backends)
}

// restore reads the ids of the run before and subscribes; once.
func (c *controller) restore() error {
	if c.in != nil {
		return nil
	}
	f, b, err := c.Earlier.IDs()
	if err != nil {
		return err
	}
	c.frontendIDs, c.backendIDs = newIDs(f), newIDs(b)
	c.Holders.load()
	if c.in, err = newInputs(c.params); err != nil {
		return fmt.Errorf("follow the tables that services are made from: %w", err)
	}
	return nil
}

// concern puts a service on the list of those that must be computed.
func (c *controller) concern(name string) {
	if !c.queued[name] {
		c.queued[name] = true
		c.queue = append(c.queue, name)
	}
}

// pass brings the tables up to a snapshot, in one commit. The first one commits by portions what can be decided service by service.
func (c *controller) pass(txn statedb.ReadTxn, changed *statedb.WatchSet) error {
	first := c.world == nil // then all are on the list
	c.move(txn, c.in.world(txn, changed, c.world))
	for _, a := range c.in.residents.moved(c.world.own) {
		c.concernBackends(txn, a)
	}
	if !c.synced && c.in.complete(txn, changed) {
		if c.synced = true; !first {
			c.concernAll(txn) // those that the maps alone had get their rows
		}
	}
	if len(c.queue) == 0 && c.complete == c.synced && c.computed {
		return nil
	}
	alone := 0 // so many at the beginning of the list contend with nobody
	var ahead <-chan []*model
	if first {
		alone = c.uncontested(txn)
		over := make(chan struct{})
		ahead = c.ahead(txn, c.queue[:alone], over)
		defer func() {
			close(over)
			for range ahead { // until it ends: the nodes of the world may change now
				continue
			}
		}()
	}
	write := c.writeTxn()
	defer func() { write.Abort() }()
	c.models = map[string]*model{}
	var models []*model
	known := len(c.queue)
	for i := 0; i < len(c.queue); i++ { // it grows meanwhile
		if 0 < i && i <= alone && (i%c.portion == 0 || i == alone) {
			write.Commit()
			write = c.writeTxn()
		}
		name := c.queue[i]
		delete(c.queued, name)
		delete(c.models, name) // it may have been asked about shared backends, but others have ClusterIPs now
		if i < alone {
			if i%c.portion == 0 {
				models = <-ahead
			}
			c.models[name] = models[i%c.portion]
		}
		if err := c.update(txn, write, name); err != nil {
			return fmt.Errorf("service %s: %w", name, err)
		}
		if i < known { // services that concern each other without end must not pass for work
			c.alive()
		}
	}
	c.Initialize.first(write)
	if c.synced && !c.complete {
		c.settle(write)
		c.Holders.settle()
		c.Initialize.all(write)
		c.complete = true
	}
	c.queue, c.models = nil, nil
	c.queued = map[string]bool{} // a map that was large stays so
	write.Commit()
	c.computed = true
	return nil
}

// move takes over a world, and concerns the services for which it is another one.
func (c *controller) move(txn statedb.ReadTxn, now *world) {
	before := c.world
	c.world = now
	if before == nil || before == now {
		return
	}
	if before.zone != now.zone {
		c.concernAll(txn)
		return
	}
	if !maps.Equal(before.labels, now.labels) {
		for s := range c.KubernetesServices.All(txn) {
			if serviceannotations.ChoosesNodes(s.Annotations) {
				c.concern(s.Key())
			}
		}
	}
	if !before.sameAddresses(now) {
		for name := range c.placed {
			c.concern(name)
		}
	}
}

// concernWithin concerns the services that want an address in a range.
func (c *controller) concernWithin(p netip.Prefix) {
	for _, names := range c.external.Subnets(p) {
		for name := range names {
			c.concern(name)
		}
	}
}

// concernBackends concerns the services of backends with an address that has come to this node or gone.
func (c *controller) concernBackends(txn statedb.ReadTxn, a netip.Addr) {
	for row := range c.Backends.LowerBound(txn, backends.ByAddress(loadbalancer.Address{Addr: a})) {
		if row.Addr != a {
			return
		}
		for _, name := range row.Services {
			c.concern(name)
		}
	}
}

func (c *controller) concernAll(txn statedb.ReadTxn) {
	for s := range c.KubernetesServices.All(txn) {
		c.concern(s.Key())
	}
	for p := range c.Pods.All(txn) {
		c.in.pod(txn, p, c.concern)
	}
}

// settle lets go of the ids that belong to nobody now.
func (c *controller) settle(write statedb.WriteTxn) {
	c.frontendIDs.settle(func(a loadbalancer.Address) bool { return c.frontend(write, a) != nil })
	c.backendIDs.settle(func(a loadbalancer.Address) bool { return c.backend(write, a) != nil })
}

// model is a service of a snapshot, nil when it is none.
func (c *controller) model(txn statedb.ReadTxn, write statedb.ReadTxn, name string) *model {
	if m, known := c.models[name]; known {
		return m
	}
	m := c.compute(txn, c.world, name, func(a netip.Addr) bool { return c.takenByOther(write, name, a) })
	c.models[name] = m
	return m
}

// compute is a model of a snapshot; taken tells of an address whether another service has it as its ClusterIP.
func (c *controller) compute(txn statedb.ReadTxn, w *world, name string, taken func(netip.Addr) bool) *model {
	if pod, host := hostPortPod(name); host {
		p, _, found := c.Pods.Get(txn, k8s.PodByName(pod))
		if !found {
			return nil
		}
		return w.hostPortService(name, p)
	}
	s, _, found := c.KubernetesServices.Get(txn, k8s.ServiceByName(name))
	if !found {
		return nil
	}
	var list []*k8s.EndpointSlice
	for slice := range c.Slices.List(txn, k8s.EndpointSlicesByService(name)) {
		list = append(list, slice)
	}
	return w.service(name, s, list, taken)
}

// ahead computes the models of services that contend with nobody, by portions, while those before are written. It ends when over is closed.
func (c *controller) ahead(txn statedb.ReadTxn, names []string, over <-chan struct{}) <-chan []*model {
	free := func(netip.Addr) bool { return false }
	portions, w := make(chan []*model, 1), c.world
	go func() {
		defer close(portions)
		for part := range slices.Chunk(names, c.portion) {
			models := make([]*model, len(part))
			for i, name := range part {
				models[i] = c.compute(txn, w, name, free)
			}
			select {
			case portions <- models:
			case <-over:
				return
			}
		}
	}()
	return portions
}

// takenByOther tells whether an address is the ClusterIP of a Service other than one, whoever serves it.
func (c *controller) takenByOther(write statedb.ReadTxn, name string, a netip.Addr) bool {
	others := c.clusterIPs[a]
	if others > 0 {
		own := c.elsewhere[name]
		if row, _, found := c.Services.Get(write, services.ByName(name)); found {
			own = row.ClusterIPs
		}
		if slices.Contains(own, a) {
			others--
		}
	}
	return others > 0
}

// foreign stands for a service that has no row: its name, and the ClusterIPs of its object, which nobody else may have here either.
func (c *controller) foreign(txn statedb.ReadTxn, name string) *model {
	m := &model{row: &services.Service{Name: name}}
	if s, _, found := c.KubernetesServices.Get(txn, k8s.ServiceByName(name)); found {
		m.row.ClusterIPs = s.ClusterIPs
	}
	return m
}
