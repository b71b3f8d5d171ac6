package services

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/clusternodes"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/services"
)

// update brings all rows of one service up to a snapshot. What others must do then is put on the list.
func (c *controller) update(txn statedb.ReadTxn, write statedb.WriteTxn, name string) error {
	old, _, found := c.Services.Get(write, services.ByName(name))
	if found {
		name = old.Name // all rows share one text
	}
	m := c.model(txn, write, name)
	if m == nil {
		m = c.foreign(txn, name)
	}
	ips := c.elsewhere[name]
	if found {
		ips = old.ClusterIPs
	} else {
		old = &c.nothing
	}
	c.remember(name, ips, m)
	if err := c.updateBackends(txn, write, name, old.Backends, m); err != nil {
		return err
	}
	if err := c.updateFrontends(txn, write, name, old.Claims, m); err != nil {
		return err
	}
	delete(c.models, name) // nobody may ask for it, and tens of thousands would fill the heap
	return c.updateService(write, old, found, m)
}

// remember notes what no row tells, and concerns those who want an address that is or was a ClusterIP of this one.
func (c *controller) remember(name string, before []netip.Addr, m *model) {
	for _, a := range before {
		if !slices.Contains(m.row.ClusterIPs, a) {
			if c.clusterIPs[a]--; c.clusterIPs[a] == 0 {
				delete(c.clusterIPs, a)
			}
			c.concernOthers(name, a)
		}
	}
	for _, a := range m.row.ClusterIPs {
		if !slices.Contains(before, a) {
			c.clusterIPs[a]++
			c.concernOthers(name, a)
		}
	}
	if delete(c.elsewhere, name); m.foreign() && len(m.row.ClusterIPs) > 0 {
		c.elsewhere[name] = m.row.ClusterIPs
	}
	for _, a := range c.externalOf[name] {
		names, _ := c.external.Get(clusternodes.Whole(a))
		if delete(names, name); len(names) == 0 {
			c.external.Delete(clusternodes.Whole(a))
		}
	}
	delete(c.externalOf, name)
	for _, a := range m.external {
		names, found := c.external.Get(clusternodes.Whole(a))
		if !found {
			names = map[string]bool{}
			c.external.Insert(clusternodes.Whole(a), names)
		}
		names[name] = true
	}
	if len(m.external) > 0 {
		c.externalOf[name] = m.external
	}
	if m.placed {
		c.placed[name] = true
	} else {
		delete(c.placed, name)
	}
}

func (c *controller) concernOthers(name string, a netip.Addr) {
	names, _ := c.external.Get(clusternodes.Whole(a))
	for other := range names {
		if other != name {
			c.concern(other)
		}
	}
}

func (c *controller) updateService(write statedb.WriteTxn, old *services.Service, found bool, m *model) error {
	if m.foreign() {
		if !found {
			return nil
		}
		_, _, err := c.Services.Delete(write, old)
		return err
	}
	m.row.Problems = m.listed()
	if found && old.Equal(m.row) {
		return nil
	}
	_, _, err := c.Services.Insert(write, m.row)
	return err
}

// backend finds a row, nil when there is none.
func (c *controller) backend(txn statedb.ReadTxn, a loadbalancer.Address) *backends.Backend {
	row, _, _ := c.Backends.Get(txn, backends.ByAddress(a))
	return row
}

// updateBackends writes those that a service names, and takes its name from those that it named before. It fills in the ids.
func (c *controller) updateBackends(txn statedb.ReadTxn, write statedb.WriteTxn, name string, before []uint32, m *model) error {
	for i := range m.backends {
		e := &m.backends[i]
		row, err := c.nameBackend(txn, write, name, e)
		if err != nil {
			return err
		}
		m.row.Backends = append(m.row.Backends, row.ID)
	}
	slices.Sort(m.row.Backends)
	for _, id := range before {
		if _, still := slices.BinarySearch(m.row.Backends, id); still {
			continue
		}
		old, _, found := c.Backends.Get(write, backends.ByID(id))
		if !found {
			return fmt.Errorf("backend %d has no row", id)
		}
		names := without(old.Services, name)
		if len(names) == 0 {
			c.backendIDs.free(old.Address, old.ID)
			if _, _, err := c.Backends.Delete(write, old); err != nil {
				return err
			}
		} else if _, err := c.putBackend(txn, write, old.Address, old, names); err != nil {
			return err
		}
	}
	return nil
}

// nameBackend writes a backend that a service names. One more service that says nothing else than those before is added without asking
// all of these.
func (c *controller) nameBackend(txn statedb.ReadTxn, write statedb.WriteTxn, name string, e *endpoint) (*backends.Backend, error) {
	old := c.backend(write, e.Address)
	if old == nil {
		return c.putBackend(txn, write, e.Address, nil, []string{name})
	}
	names := with(old.Services, name)
	agree := func(a, b string) bool { return a == "" || b == "" || a == b }
	if len(names) == len(old.Services) || !agree(old.Node, e.node) || !agree(old.Zone, e.zone) || !agree(old.Pod, e.pod) {
		return c.putBackend(txn, write, e.Address, old, names)
	}
	row := *old
	row.Services = names
	if rank(e.state) > rank(row.State) {
		row.State = e.state
	}
	row.Node, row.Zone, row.Pod = cmp.Or(row.Node, e.node), cmp.Or(row.Zone, e.zone), cmp.Or(row.Pod, e.pod)
	_, _, err := c.Backends.Insert(write, &row)
	return &row, err
}

// putBackend writes what all services that name a backend say of it together: the best state, and node, zone and pod as the first says who
// knows them. Whether it is on this node none of them is asked: anybody may name the backends of others in a slice.
func (c *controller) putBackend(txn statedb.ReadTxn, write statedb.WriteTxn, a loadbalancer.Address, old *backends.Backend, names []string) (*backends.Backend, error) {
	row := backends.Backend{Address: a, State: backends.NotReady, Local: c.in.residents.has(a.Addr), Services: names}
	for _, name := range names {
		m := c.model(txn, write, name)
		if m == nil {
			continue // it is on the list
		}
		i, found := slices.BinarySearchFunc(m.backends, a, func(e endpoint, a loadbalancer.Address) int { return e.Address.Compare(a) })
		if !found {
			continue // likewise
		}
		e := &m.backends[i]
		if rank(e.state) > rank(row.State) {
			row.State = e.state
		}
		row.Node, row.Zone, row.Pod = cmp.Or(row.Node, e.node), cmp.Or(row.Zone, e.zone), cmp.Or(row.Pod, e.pod)
	}
	if old != nil {
		if row.ID = old.ID; old.Equal(&row) {
			return old, nil
		}
	} else {
		row.ID = c.backendIDs.of(a)
	}
	_, _, err := c.Backends.Insert(write, &row)
	return &row, err
}

// with is a sorted list with a name.
func with(list []string, name string) []string {
	i, found := slices.BinarySearch(list, name)
	if found {
		return list
	}
	return slices.Concat(list[:i], []string{name}, list[i:])
}

// without is a sorted list without a name.
func without(list []string, name string) []string {
	i, found := slices.BinarySearch(list, name)
	if !found {
		return list
	}
	return slices.Concat(list[:i], list[i+1:])
}
