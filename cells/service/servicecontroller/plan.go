package servicecontroller

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/clusternodes"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/services"
)

// plan updates the tables to one snapshot. It divides its services into portions and makes one commit for each. The phases of a portion are the phases of
// [plan.prepare], during which no table is locked, and of [plan.enter].
type plan struct {
	*controller
	txn      statedb.ReadTxn  // the snapshot
	write    statedb.WriteTxn // of the current portion
	early    bool             // the current portion is not the last one
	portions [][]string
	alone    int                    // number of leading portions, whose services have no conflicts
	rivals   *rivals                // Services with conflicts; nil if the services were not divided
	ahead    <-chan []*model        // models of the leading portions, computed while the previous portion is written
	reported []loadbalancer.Address // shared backends whose reports have changed in this portion
	done     tally
}

// tally counts the work of a pass.
type tally struct {
	models    int // services computed
	endpoints int // endpoints of slices read for them
	left      int // services that the next pass has to compute
}

// work is one service of a portion.
type work struct {
	name  string
	old   *services.Service // the row in the table; empty without a row
	found bool              // there is a row
	model *model

	clusterIPs []netip.Addr // of the object, also when another proxy serves it
	postponed  bool         // it is computed in the last portion
}

// makePlan divides the services that must be computed into portions. In the first pass, or if they exceed one portion, the services without conflicts are in
// the first portions, so that the maps are written while the rest is computed. All services with conflicts are in the last portion.
func (c *controller) makePlan(txn statedb.ReadTxn, first bool) *plan {
	p := &plan{controller: c, txn: txn}
	names, most, backends := c.queue.takeClaims(), c.portion, c.portionBackends
	if first {
		most, backends = len(c.queue.endpoints), math.MaxInt
	}
	if first || len(names) > c.portion {
		var alone []string
		p.rivals = c.rivals(txn)
		alone, names = p.rivals.divide(names)
		p.portions = slices.Collect(slices.Chunk(alone, c.portion))
		p.alone = len(p.portions)
	}
	names = append(names, c.queue.takeEndpoints(most, backends, func(name string) int {
		if row, _, found := c.Services.Get(txn, services.ByName(name)); found {
			return len(row.Backends)
		}
		return 0
	})...)
	if len(names) > 0 || p.alone == 0 {
		p.portions = append(p.portions, names)
	}
	return p
}

// computeAhead computes the models of the portions without conflicts in a goroutine, each while the previous portion is written. It returns a function that
// ends the goroutine and waits for its end.
func (p *plan) computeAhead() (end func()) {
	free := func(netip.Addr) bool { return false }
	models, over, w := make(chan []*model, 1), make(chan struct{}), p.world
	p.ahead = models
	go func() {
		defer close(models)
		for _, names := range p.portions[:p.alone] {
			part := make([]*model, len(names))
			for i, name := range names {
				part[i] = p.compute(p.txn, w, name, nil, free)
			}
			select {
			case models <- part:
			case <-over:
				return
			}
		}
	}()
	return func() {
		close(over)
		for range models { // wait for its end, because the nodes of the world may change afterwards
			continue
		}
	}
}

// run computes and commits the portions, and calls complete before the last commit. A service that must be computed again because of another service, such
// as the next owner of an address, is in the last portion.
func (p *plan) run(moved []netip.Addr, complete func(statedb.WriteTxn)) error {
	for i, names := range p.portions {
		p.early = i < len(p.portions)-1
		list, err := p.prepare(p.txn, names, p.next())
		if err != nil {
			return err
		}
		for range list { // not for services that others queue: services that queue each other without end are a stall
			p.alive()
		}
		p.write = p.writeTxn()
		if err = p.enter(list); err == nil && !p.early {
			err = p.finish(moved)
		}
		if err == nil {
			err = p.writeShared()
		}
		if err != nil {
			p.write.Abort()
			return err
		}
		if !p.early {
			complete(p.write)
		}
		p.write.Commit()
	}
	p.done.left = len(p.queue.endpoints)
	return nil
}

// finish computes the services that other services have queued, until the queue is empty, and updates the field Local of backends whose address was added to
// this node or removed from it.
func (p *plan) finish(moved []netip.Addr) error {
	for len(p.queue.claims) > 0 {
		list, err := p.prepare(p.write, p.queue.takeClaims(), nil)
		if err == nil {
			err = p.enter(list)
		}
		if err != nil {
			return err
		}
	}
	return p.locate(moved)
}

// next returns the models of the next portion if they are computed ahead, or nil.
func (p *plan) next() []*model {
	if p.ahead == nil {
		return nil
	}
	return <-p.ahead
}

// prepare computes the desired state of services in phases. Each phase is complete for all services before the next one begins. The old rows are read from
// rows. models are the models that are computed already, or nil.
func (p *plan) prepare(rows statedb.ReadTxn, names []string, models []*model) ([]work, error) {
	list := make([]work, len(names))
	for i, name := range names {
		w := &list[i]
		w.name = name
		if w.old, _, w.found = p.Services.Get(rows, services.ByName(name)); w.found {
			w.name = w.old.Name // all rows share one string
		} else {
			w.old = &services.Service{}
		}
		if models != nil {
			w.model = models[i]
		}
	}
	return list, p.do(list,
		p.noteClusterIPs, // so that no model takes the ClusterIP of another service
		p.compose,        // models from the objects
		p.postpone,       // to the last portion: services whose changes must not be split over two commits
		p.noteAddresses,  // on which services depend, for later changes
	)
}

// enter writes the rows of services in phases.
func (p *plan) enter(list []work) error {
	return p.do(list,
		p.nameBackends,   // rows of backends, which give ids to frontends
		p.claimAddresses, // which service has an address; rows of frontends
		p.writeService,
	)
}

func (p *plan) do(list []work, phases ...func(*work) error) error {
	for _, phase := range phases {
		for i := range list {
			if w := &list[i]; !w.postponed {
				if err := phase(w); err != nil {
					return fmt.Errorf("service %s: %w", w.name, err)
				}
			}
		}
	}
	return nil
}

// noteClusterIPs records the ClusterIPs of a Service, even if another proxy serves it. It queues the services with an external address that becomes a ClusterIP
// or no longer is one.
func (p *plan) noteClusterIPs(w *work) error {
	before, noted := p.addresses.elsewhere[w.name]
	if !noted {
		before = w.old.ClusterIPs
	}
	if s, _, found := p.KubernetesServices.Get(p.txn, k8s.ServiceByName(w.name)); found {
		w.clusterIPs = s.ClusterIPs
	}
	p.addresses.replaceClusterIPs(before, w.clusterIPs, func(a netip.Addr) {
		for other := range p.addresses.wanting(clusternodes.Whole(a)) {
			if other != w.name {
				p.queue.claim(other)
			}
		}
	})
	return nil
}

// compose models a service. A service that gets no row has the model of [controller.foreign].
func (p *plan) compose(w *work) error {
	if w.model == nil {
		w.model = p.compute(p.txn, p.world, w.name, p.rosters[w.name], func(a netip.Addr) bool {
			return p.addresses.taken(w.clusterIPs, a)
		})
	}
	if w.model == nil {
		w.model = p.foreign(p.txn, w.name)
	}
	p.done.models++
	return nil
}

// postpone moves a service to the last portion if it releases an address that another service may get: otherwise the address would have no owner in the commits
// in between. The other service may be computed earlier, and is a claimant until then.
func (p *plan) postpone(w *work) error {
	if !p.early {
		return nil
	}
	left := func(a loadbalancer.Address) bool {
		_, still := slices.BinarySearchFunc(w.model.claims, a, func(cl claim, a loadbalancer.Address) int { return cl.Address.Compare(a) })
		return !still && (p.conflicts.claimants[a] != nil || p.rivals.want(a.Addr, w.name))
	}
	if slices.ContainsFunc(w.old.Claims, left) {
		w.postponed = true
		p.addresses.elsewhere[w.name] = w.clusterIPs // recorded, but in no row yet
		p.queue.claim(w.name)
	}
	return nil
}

// noteAddresses records the addresses on which a service depends.
func (p *plan) noteAddresses(w *work) error {
	delete(p.addresses.elsewhere, w.name)
	if ips := w.model.row.ClusterIPs; w.model.foreign() && len(ips) > 0 {
		p.addresses.elsewhere[w.name] = ips
	}
	p.addresses.want(w.name, w.model.external, w.model.placed)
	return nil
}

// nameBackends reports about the backends of a service and finds its members, from all endpoints or from the changed ones.
func (p *plan) nameBackends(w *work) error {
	m := w.model
	patched, err := p.patchBackends(w)
	if !patched && err == nil {
		if m.roster != nil { // the changed slices do not suffice
			m.gather(p.world)
		}
		err = p.replaceBackends(w)
	}
	p.done.endpoints += m.read
	p.keepRoster(w.name, m)
	return err
}

// replaceBackends reports about all backends of a service, and drops the backends that only its old row names.
func (p *plan) replaceBackends(w *work) error {
	all := w.model.endpoints()
	ids := make([]uint32, len(all))
	for i := range all {
		var err error
		if ids[i], err = p.name(w.name, &all[i]); err != nil {
			return err
		}
	}
	for _, g := range w.model.groups {
		g.members = make([]member, len(g.endpoints))
		for i := range g.endpoints {
			e := &g.endpoints[i]
			at, _ := slices.BinarySearchFunc(all, e.Address, byAddress)
			g.members[i] = newMember(e, ids[at])
		}
		slices.SortFunc(g.members, byID)
	}
	w.model.count()
	for _, id := range w.old.Backends {
		if _, still := slices.BinarySearch(w.model.row.Backends, id); !still {
			if err := p.drop(w.name, id); err != nil {
				return err
			}
		}
	}
	return nil
}

// patchBackends reports about the backends whose data differs in the changed slices, and drops removed ones. It returns false, without any change, if the
// changed slices do not suffice: another slice names an address too, or the address stays behind another port.
func (p *plan) patchBackends(w *work) (patched bool, err error) {
	m := w.model
	if m.roster == nil {
		return false, nil
	}
	patches := map[loadbalancer.Address]*patch{}
	for i, g := range m.groups {
		g.touch(func(a loadbalancer.Address, t touched) {
			if patches[a] == nil {
				patches[a] = &patch{Address: a, of: make([]touched, len(m.groups))}
			}
			patches[a].of[i] = t
		})
	}
	list := slices.SortedFunc(maps.Values(patches), func(a, b *patch) int { return a.Compare(b.Address) })
	for _, x := range list {
		if row := p.backend(p.write, x.Address); row != nil {
			x.id = row.ID
		}
		if !x.known(m.roster) {
			return false, nil
		}
	}
	changes := make([][]member, len(m.groups))
	for _, x := range list {
		if err := p.patchBackend(w.name, x); err != nil {
			return false, err
		}
		for i := range changes {
			changes[i] = append(changes[i], x.member(i))
		}
	}
	for i, g := range m.groups {
		slices.SortFunc(changes[i], byID)
		g.members = revise(m.roster.members[i], changes[i], byID, func(m *member) bool { return m.mentions == 0 })
	}
	m.count()
	return true, nil
}

// patchBackend reports about or drops one backend.
func (p *plan) patchBackend(service string, x *patch) (err error) {
	if e := x.best(); e != nil {
		x.id, err = p.name(service, e)
		return err
	}
	return p.drop(service, x.id)
}

// keepRoster keeps the members of a service with many endpoints.
func (p *plan) keepRoster(name string, m *model) {
	delete(p.rosters, name)
	r := &roster{service: m.object, world: p.world, slices: m.slices, placed: m.placed, size: m.size}
	count := 0
	for _, g := range m.groups {
		r.members = append(r.members, g.members)
		count += len(g.members)
	}
	if count >= p.many && len(m.groups) <= maxGroups && m.size <= maxMembers && !m.unusable {
		p.rosters[name] = r
	}
}

// claimAddresses claims the addresses of a service, and withdraws the claims that the service no longer makes.
func (p *plan) claimAddresses(w *work) error {
	m := w.model
	for i := range m.claims {
		m.row.Claims = append(m.row.Claims, m.claims[i].Address)
	}
	for _, a := range w.old.Claims {
		if _, still := slices.BinarySearchFunc(m.row.Claims, a, loadbalancer.Address.Compare); !still {
			if err := p.withdraw(a, w.name); err != nil {
				return err
			}
		}
	}
	for i := range m.claims {
		if cl := &m.claims[i]; !p.held(cl.Address) {
			if err := p.claim(w.name, m, cl); err != nil {
				return err
			}
		}
	}
	return nil
}

// writeService writes or removes the row of a service.
func (p *plan) writeService(w *work) error {
	m := w.model
	if m.foreign() {
		if !w.found {
			return nil
		}
		_, _, err := p.Services.Delete(p.write, w.old)
		return err
	}
	for a := range p.conflicts.lost[w.name] {
		m.problem("%s: belongs to %s", a, p.conflicts.claimants[a][0].name)
	}
	m.row.Problems = m.listed()
	if w.found && w.old.Equal(m.row) {
		return nil
	}
	_, _, err := p.Services.Insert(p.write, m.row)
	return err
}
