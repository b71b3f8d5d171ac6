// Package serving tells whether backends still answer those who came to them by a service.
package serving

import (
	"slices"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
	"github.com/waggle-net/waggle/pkg/tables/services"
)

// Tables are what services are made of.
type Tables struct {
	cell.In

	Services  statedb.Table[*services.Service]
	Frontends statedb.Table[*frontends.Frontend]
	Backends  statedb.Table[*backends.Backend]
}

// View is the tables at one moment. It keeps what was asked about services with many addresses. It belongs to one goroutine.
type View struct {
	Tables
	txn   statedb.ReadTxn
	ports map[member][]string // names of the ports that have it
}

// member is a backend of a service.
type member struct {
	service string
	backend uint32
}

// At is a view of a snapshot.
func (t Tables) At(txn statedb.ReadTxn) *View {
	return &View{Tables: t, txn: txn, ports: map[member][]string{}}
}

// Datagrams tells whether a backend still answers datagrams that are sent to a frontend. Either is nil when it is gone. A client cannot
// tell that nobody answers, so a backend that is not ready does not; one that terminates does as long as it is there.
func (v *View) Datagrams(f *frontends.Frontend, b *backends.Backend) bool {
	return f != nil && b != nil && b.State != backends.NotReady && slices.Contains(b.Services, f.Service) && !v.moved(f, b.ID)
}

// moved tells whether a backend of the service is that of another of its ports. A frontend does not name all that answer, for instance
// not those that terminate or those elsewhere: whom no port names has not moved.
func (v *View) moved(f *frontends.Frontend, backend uint32) bool {
	if has(f, backend) {
		return false
	}
	m := member{f.Service, backend}
	ports, known := v.ports[m]
	if !known {
		ports = v.portsOf(m)
		v.ports[m] = ports
	}
	return len(ports) > 0 && !slices.Contains(ports, f.PortName)
}

// portsOf looks at all addresses of the service.
func (v *View) portsOf(m member) (names []string) {
	s, _, found := v.Services.Get(v.txn, services.ByName(m.service))
	if !found {
		return nil
	}
	for _, a := range s.Claims {
		f, _, found := v.Frontends.Get(v.txn, frontends.ByAddress(a))
		if found && f.Service == m.service && has(f, m.backend) && !slices.Contains(names, f.PortName) {
			names = append(names, f.PortName)
		}
	}
	return names
}

// has tells whether a frontend sends new clients to a backend.
func has(f *frontends.Frontend, backend uint32) bool {
	for _, list := range [][]uint32{f.Backends, f.Internal} {
		if _, found := slices.BinarySearch(list, backend); found {
			return true
		}
	}
	return false
}
