package deviceobserver

import (
	"strconv"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/devices"
)

// replaceAll makes the tables equal to a full list.
func (b *batch) replaceAll(s state) {
	b.replaceRoutes(s.routes)

	addresses := make(map[devices.Address]struct{}, len(s.addresses))
	for _, a := range s.addresses {
		addresses[a] = struct{}{}
		b.touched[a.LinkIndex] = struct{}{}
		b.note(put(b.txn, b.addresses, devices.AddressByID, a, a.Prefix.String(), a.LinkIndex))
	}
	for a := range b.addresses.All(b.txn) {
		if _, ok := addresses[a]; !ok {
			b.touched[a.LinkIndex] = struct{}{}
			b.note(remove(b.txn, b.addresses, a))
		}
	}
	neighbors := make(map[devices.Neighbor]struct{}, len(s.neighbors))
	for _, n := range s.neighbors {
		neighbors[n] = struct{}{}
		b.note(put(b.txn, b.neighbors, devices.NeighborByID, n, n.Addr.String(), n.LinkIndex))
	}
	for n := range b.neighbors.All(b.txn) {
		if _, ok := neighbors[n]; !ok {
			b.note(remove(b.txn, b.neighbors, n))
		}
	}
	b.replaceDevices(s.devices)
}

// replaceDevices must run last, because the selection of a device needs its addresses and routes.
func (b *batch) replaceDevices(devices []*devices.Device) {
	seen := make(map[int]struct{}, len(devices))
	for _, d := range devices {
		seen[d.Index] = struct{}{}
		b.putDevice(d)
	}
	for d := range b.devices.All(b.txn) {
		if _, ok := seen[d.Index]; !ok {
			b.note(remove(b.txn, b.devices, d))
		}
	}
}

// replaceRoutes makes the table of routes equal to a list.
func (b *batch) replaceRoutes(routes []*devices.Route) {
	seen := make(map[string]struct{}, len(routes))
	for _, r := range routes {
		seen[r.Key()] = struct{}{}
		b.touched[r.LinkIndex] = struct{}{}
		b.putRoute(r)
	}
	for r := range b.routes.All(b.txn) {
		if _, ok := seen[r.Key()]; !ok {
			b.touched[r.LinkIndex] = struct{}{}
			b.note(remove(b.txn, b.routes, r))
		}
	}
}

// put inserts a row that is new or differs; inserting an equal row would wake every reader.
func put[T comparable](txn statedb.WriteTxn, table statedb.RWTable[T], query func(string) statedb.Query[T], row T, name string, link int) error {
	if old, _, found := table.Get(txn, query(name+"@"+strconv.Itoa(link))); found && old == row {
		return nil
	}
	_, _, err := table.Insert(txn, row)
	return err
}

func remove[T any](txn statedb.WriteTxn, table statedb.RWTable[T], row T) error {
	_, _, err := table.Delete(txn, row)
	return err
}
