package servicecontroller

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/tables/backends"
)

// report is the data of one service about a backend.
type report struct {
	service         string
	state           backends.State // empty: the service no longer names the backend
	node, zone, pod string
}

func byService(a, b report) int { return cmp.Compare(a.service, b.service) }

// shared is a backend that several services name. The row of a backend that one service names is the report of that service.
type shared struct {
	id      uint32
	reports []report // by service
	changes []report // since the last commit, in the order of their arrival
}

// change records r. It reports whether r is the first change since the last commit.
func (s *shared) change(r report) (first bool) {
	at, found := slices.BinarySearchFunc(s.reports, r, byService)
	if len(s.changes) == 0 && (found && s.reports[at] == r || !found && r.state == "") {
		return false
	}
	s.changes = append(s.changes, r)
	return len(s.changes) == 1
}

// settle applies the changes. Of each service only the last change counts.
func (s *shared) settle() {
	slices.Reverse(s.changes)
	slices.SortStableFunc(s.changes, byService)
	s.changes = slices.CompactFunc(s.changes, func(a, b report) bool { return a.service == b.service })
	s.reports = revise(s.reports, s.changes, byService, func(r *report) bool { return r.state == "" })
	s.changes = nil
}

// merge fills a row with the reports of all services: the best state, and node, zone and pod from the first service, by name, that knows each.
func (s *shared) merge(row *backends.Backend) {
	row.State = backends.NotReady
	for i := range s.reports {
		r := &s.reports[i]
		if rank(r.state) > rank(row.State) {
			row.State = r.state
		}
		row.Node, row.Zone, row.Pod = cmp.Or(row.Node, r.node), cmp.Or(row.Zone, r.zone), cmp.Or(row.Pod, r.pod)
	}
}

// names returns the services that report, in order. It returns before itself if its names are the same.
func (s *shared) names(before []string) []string {
	if slices.EqualFunc(before, s.reports, func(name string, r report) bool { return name == r.service }) {
		return before
	}
	names := make([]string, len(s.reports))
	for i := range s.reports {
		names[i] = s.reports[i].service
	}
	return names
}

// name reports about a backend for a service and returns the id of the backend. It writes the row of a backend with one service at once. [plan.writeShared]
// writes the row of a shared backend, with all reports of the portion.
func (p *plan) name(service string, e *endpoint) (uint32, error) {
	r := report{service, e.state, e.node, e.zone, e.pod}
	if s := p.shared[e.Address]; s != nil {
		p.changed(e.Address, s, r)
		return s.id, nil
	}
	old := p.backend(p.write, e.Address)
	if old != nil && !(len(old.Services) == 1 && old.Services[0] == service) {
		s := p.share(old)
		p.changed(e.Address, s, r)
		return s.id, nil
	}
	row := &backends.Backend{Address: e.Address, State: e.state, Local: p.in.residents.has(e.Addr), Node: e.node, Zone: e.zone, Pod: e.pod}
	if old != nil {
		row.ID, row.Services = old.ID, old.Services
		if row.Equal(old) {
			return row.ID, nil
		}
	} else {
		row.ID, row.Services = p.backendIDs.assign(e.Address), []string{service}
	}
	_, _, err := p.Backends.Insert(p.write, row)
	return row.ID, err
}

// drop withdraws the report of a service about a backend. The row is removed by [plan.writeShared] unless another service has named the backend by then, so
// a backend that moves from one service to another keeps its id.
func (p *plan) drop(service string, id uint32) error {
	old, _, found := p.Backends.Get(p.write, backends.ByID(id))
	if !found {
		return fmt.Errorf("backend %d has no row", id)
	}
	s := p.shared[old.Address]
	if s == nil {
		s = p.share(old)
	}
	p.changed(old.Address, s, report{service: service})
	return nil
}

// share starts to keep the reports about a backend.
func (p *plan) share(row *backends.Backend) *shared {
	s := &shared{id: row.ID, reports: []report{{row.Services[0], row.State, row.Node, row.Zone, row.Pod}}}
	p.shared[row.Address] = s
	return s
}

func (p *plan) changed(a loadbalancer.Address, s *shared, r report) {
	if s.change(r) {
		p.reported = append(p.reported, a)
	}
}

// writeShared writes each shared backend whose reports have changed in this portion, once.
func (p *plan) writeShared() error {
	for _, a := range p.reported {
		if err := p.writeBackend(a, p.shared[a]); err != nil {
			return err
		}
	}
	p.reported = nil
	return nil
}

func (p *plan) writeBackend(a loadbalancer.Address, s *shared) error {
	s.settle()
	if len(s.reports) < 2 {
		delete(p.shared, a) // the row is the report
	}
	old := p.backend(p.write, a)
	if len(s.reports) == 0 {
		p.backendIDs.free(a, s.id)
		_, _, err := p.Backends.Delete(p.write, old)
		return err
	}
	row := &backends.Backend{Address: a, ID: s.id, Local: p.in.residents.has(a.Addr), Services: s.names(old.Services)}
	if s.merge(row); row.Equal(old) {
		return nil
	}
	_, _, err := p.Backends.Insert(p.write, row)
	return err
}

// locate updates the field Local of the backends with the given addresses. Their services are not computed again.
func (p *plan) locate(moved []netip.Addr) error {
	for _, a := range moved {
		var rows []*backends.Backend
		for row := range p.Backends.LowerBound(p.write, backends.ByAddress(loadbalancer.Address{Addr: a})) {
			if row.Addr != a {
				break
			}
			rows = append(rows, row)
		}
		for _, old := range rows {
			row := *old
			if row.Local = p.in.residents.has(a); row.Local == old.Local {
				continue
			}
			if _, _, err := p.Backends.Insert(p.write, &row); err != nil {
				return err
			}
		}
	}
	return nil
}
