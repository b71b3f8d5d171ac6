package servicecontroller

import (
	"context"
	"fmt"
	"maps"
	"net/netip"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/services"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// controller is the state of the only loop of the cell. It holds no data that the tables have.
type controller struct {
	params
	in    *inputs
	world *world
	queue queue
	alive func() // reports progress of a pass; the number of calls in a pass is bounded

	frontendIDs, backendIDs *ids
	addresses               addresses
	conflicts               conflicts
	shared                  map[loadbalancer.Address]*shared // backends that several services name
	rosters                 map[string]*roster               // of services with many endpoints

	computed bool // the first pass is committed
	complete bool // the tables are complete
	synced   bool // all inputs are synced with their sources

	portion         int // number of services in one commit
	portionBackends int // number of backends of the services in a pass at which the pass is full
	many            int // minimum number of endpoints of a service with a roster
}

const (
	// portion is the number of services in one commit. It lets the maps be written while other services are computed, and bounds how long a change waits and how
	// long the tables are locked.
	portion = 2048
	// portionBackends bounds the time of a pass, which is proportional to its endpoints: when the services whose endpoints have changed have so many backends in
	// their rows, the others wait for the next pass. One service may have as many.
	portionBackends = maxMembers
	// many is the minimum number of endpoints of a service with a roster, which takes 32 bytes for each endpoint.
	many = 256
)

func newController(p params) *controller {
	return &controller{params: p, alive: func() {}, queue: newQueue(), addresses: newAddresses(), conflicts: newConflicts(),
		shared: map[loadbalancer.Address]*shared{}, rosters: map[string]*roster{}, portion: portion, portionBackends: portionBackends,
		many: many}
}

// run has no debounce interval: a change is handled at once, and the changes during a pass are handled together by the next pass.
func (c *controller) run(ctx context.Context, health cell.Health) error {
	if !c.Rules.agent.KubeProxyReplacement {
		txn := c.writeTxn()
		c.Initialize.all(txn)
		txn.Commit()
		health.OK("off: --kube-proxy-replacement=false")
		return nil
	}
	c.alive = func() { watchdog.Busy(ctx) }
	if err := c.restore(); err != nil {
		health.Degraded("the maps of services cannot be read; their entries stay in force", err)
		return err
	}
	watched := []statedb.TableMeta{c.KubernetesServices, c.Slices, c.Pods, c.NodeAddresses}
	err := loop.Run(ctx, c.DB, loop.Options{Tables: watched}, func(r *loop.Round) error {
		c.read(r.Txn, r.Changed)
		if waiting := c.in.waiting(r.Txn, r.Changed); waiting != "" {
			health.OK("waiting for " + waiting)
			return nil
		}
		done, err := c.pass(r.Txn, r.Changed)
		if err != nil {
			health.Degraded("compute services", err)
			return err
		}
		c.Log.Debug("Services are computed", "services", done.models, "sliceEndpoints", done.endpoints, "left", done.left)
		now := c.DB.ReadTxn()
		if err := c.Holders.keep(now, c); err != nil { // retried after the next change
			health.Degraded("record the owners of contested addresses", err)
		} else {
			health.OK(fmt.Sprintf("%d services, %d frontends, %d backends", c.Services.NumObjects(now), c.Frontends.NumObjects(now),
				c.Backends.NumObjects(now)))
		}
		if done.left > 0 {
			r.Within(0) // the next portion, with a newer snapshot
		}
		return nil
	})
	if err == nil {
		c.in.close()
	}
	return err
}

func (c *controller) writeTxn() statedb.WriteTxn {
	return c.DB.WriteTxn(c.Services, c.Frontends, c.Backends)
}

// restore reads the ids and owners of the previous run and subscribes to the tables. It does nothing when the inputs exist already.
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
	in, err := newInputs(c.params)
	if err != nil {
		return fmt.Errorf("follow the input tables of services: %w", err)
	}
	c.in = in // only complete: its presence ends attempts to restore
	return nil
}

// read queues the services that changes up to a snapshot concern.
func (c *controller) read(txn statedb.ReadTxn, changed *statedb.WatchSet) {
	c.in.read(txn, changed, &c.queue, func(p netip.Prefix) {
		for name := range c.addresses.wanting(p) {
			c.queue.claim(name)
		}
	})
}

// pass updates the tables to a snapshot. Of the services of which only the backends may have changed, it computes one portion and leaves the rest for the next
// pass.
func (c *controller) pass(txn statedb.ReadTxn, changed *statedb.WatchSet) (tally, error) {
	first := c.world == nil // all services are queued then
	c.move(txn, c.in.world(txn, changed, c.world))
	moved := c.in.residents.moved(c.world.own)
	if !c.synced && c.in.complete(txn, changed) {
		if c.synced = true; !first {
			c.all(txn, c.queue.claim) // adds the rows of frontends that only the maps have
		}
	}
	if c.queue.empty() && len(moved) == 0 && c.complete == c.synced && c.computed {
		return tally{}, nil
	}
	p := c.makePlan(txn, first)
	if first {
		c.addresses.clusterIPs = newAddressCounts(p.rivals.families()) // its final size
		defer p.computeAhead()()
	}
	if err := p.run(moved, c.initialize); err != nil {
		for _, names := range p.portions {
			for _, name := range names {
				c.queue.claim(name)
			}
		}
		return p.done, err
	}
	c.queue.renew()
	return p.done, nil
}

// initialize completes the initializers of the tables in the last commit of a pass.
func (c *controller) initialize(write statedb.WriteTxn) {
	c.computed = true
	c.Initialize.first(write)
	if c.synced && !c.complete {
		c.settle(write)
		c.Holders.settle()
		c.Initialize.all(write)
		c.complete = true
	}
}

// move replaces the world, and queues the services that the difference concerns.
func (c *controller) move(txn statedb.ReadTxn, now *world) {
	before := c.world
	if c.world = now; before == nil || before == now {
		return
	}
	if !maps.Equal(before.labels, now.labels) {
		for name, wanted := range c.in.wanted {
			if wanted.ChoosesNodes() {
				c.queue.claim(name)
			}
		}
	}
	if !before.sameAddresses(now) {
		for name := range c.addresses.placed {
			c.queue.claim(name)
		}
	}
	if before.zone != now.zone {
		c.all(txn, c.queue.follow)
	}
}

// all calls queue with all services.
func (c *controller) all(txn statedb.ReadTxn, queue func(string)) {
	for s := range c.KubernetesServices.All(txn) {
		queue(s.Key())
	}
	for p := range c.Pods.All(txn) {
		c.in.pod(txn, p, queue)
	}
}

// settle releases the ids of the previous run that no row has.
func (c *controller) settle(write statedb.WriteTxn) {
	c.frontendIDs.settle(func(a loadbalancer.Address) bool { return c.frontend(write, a) != nil })
	c.backendIDs.settle(func(a loadbalancer.Address) bool { return c.backend(write, a) != nil })
}

// compute models a service as of a snapshot. It returns nil if the object does not exist or this node does not serve it. taken reports whether an address is
// the ClusterIP of another service. Without a valid roster all slices are read.
func (c *controller) compute(txn statedb.ReadTxn, w *world, name string, r *roster, taken func(netip.Addr) bool) *model {
	if pod, host := hostPortPod(name); host {
		p, _, found := c.Pods.Get(txn, k8s.PodByName(pod))
		if !found {
			return nil
		}
		return w.hostPortService(name, p, c.in.hostPorts[pod][name])
	}
	s, _, found := c.KubernetesServices.Get(txn, k8s.ServiceByName(name))
	if !found {
		return nil
	}
	m := w.service(name, s, c.in.wants(name), taken)
	if m == nil {
		return nil
	}
	for slice := range c.Slices.List(txn, k8s.EndpointSlicesByService(name)) {
		m.slices = append(m.slices, slice)
	}
	if !r.fits(w, s, len(m.groups)) || !m.follow(w, r) {
		m.gather(w)
	}
	return m
}

// backend returns the row of an address, or nil.
func (c *controller) backend(txn statedb.ReadTxn, a loadbalancer.Address) *backends.Backend {
	row, _, _ := c.Backends.Get(txn, backends.ByAddress(a))
	return row
}

// foreign models a service without a row: its name, and the ClusterIPs of its object, which no other service may claim on this node either.
func (c *controller) foreign(txn statedb.ReadTxn, name string) *model {
	m := &model{row: &services.Service{Name: name}}
	if s, _, found := c.KubernetesServices.Get(txn, k8s.ServiceByName(name)); found {
		m.row.ClusterIPs = s.ClusterIPs
	}
	return m
}
