// Package backendcheck reports whether backends still respond to clients that reached them by a service.
package backendcheck

import (
	"slices"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/services"
)

// Tables holds the tables of services, and the one of the addresses of pods and nodes.
type Tables struct {
	cell.In

	Services  statedb.Table[*services.Service]
	Frontends statedb.Table[*frontends.Frontend]
	Backends  statedb.Table[*backends.Backend]
	IPCache   statedb.Table[*ipcache.Entry]
}

// View is a snapshot of the tables. It caches results for services with many addresses. It must be used by one goroutine.
type View struct {
	Tables
	txn   statedb.ReadTxn
	ports map[member][]string // names of the ports with this backend
}

// member is a backend of a service.
type member struct {
	service string
	backend uint32
}

// At returns a view of a snapshot.
func (t Tables) At(txn statedb.ReadTxn) *View {
	return &View{Tables: t, txn: txn, ports: map[member][]string{}}
}

// Datagrams reports whether a backend still responds to datagrams to a frontend. Each is nil when it is deleted. A client cannot detect that responses are
// missing, so a backend that is not ready does not count as responding; a terminating backend does until it is deleted.
func (v *View) Datagrams(f *frontends.Frontend, b *backends.Backend) bool {
	return f != nil && b != nil && b.State != backends.NotReady && slices.Contains(b.Services, f.Service) && !v.moved(f, b.ID)
}

// moved reports whether a backend of the service belongs to another port of the service. A frontend does not list all responding backends: terminating
// backends and backends on other nodes may be missing. A backend that no port lists has not moved.
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

// portsOf returns the names of the ports with the backend, over all addresses of the service.
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

// has reports whether a frontend sends new clients to a backend.
func has(f *frontends.Frontend, backend uint32) bool {
	for _, list := range [][]uint32{f.Backends, f.Internal} {
		if _, found := slices.BinarySearch(list, backend); found {
			return true
		}
	}
	return false
}
