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

// Datagrams tells whether a backend still answers datagrams that are sent to a frontend. Either is nil when it is gone. A client cannot
// tell that nobody answers, so a backend that is not ready does not; one that terminates does as long as it is there.
func (t Tables) Datagrams(txn statedb.ReadTxn, f *frontends.Frontend, b *backends.Backend) bool {
	return f != nil && b != nil && b.State != backends.NotReady && slices.Contains(b.Services, f.Service) && !t.moved(txn, f, b.ID)
}

// moved tells whether a backend of the service is that of another of its ports. A frontend does not name all that answer, for instance
// not those that terminate or those elsewhere: whom no port names has not moved.
func (t Tables) moved(txn statedb.ReadTxn, f *frontends.Frontend, backend uint32) bool {
	if has(f, backend) {
		return false
	}
	s, _, found := t.Services.Get(txn, services.ByName(f.Service))
	if !found {
		return false
	}
	moved := false
	for _, a := range s.Claims {
		other, _, found := t.Frontends.Get(txn, frontends.ByAddress(a))
		if !found || other.Service != f.Service || !has(other, backend) {
			continue
		}
		if other.PortName == f.PortName {
			return false
		}
		moved = true
	}
	return moved
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
