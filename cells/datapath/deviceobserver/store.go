package deviceobserver

import (
	"errors"
	"net/netip"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/devices"
)

// store applies changes of the kernel to the tables, which are the observer's only state.
type store struct {
	db        *statedb.DB
	devices   statedb.RWTable[*devices.Device]
	addresses statedb.RWTable[devices.Address]
	routes    statedb.RWTable[*devices.Route]
	neighbors statedb.RWTable[devices.Neighbor]
	selector  selector
	complete  func(statedb.WriteTxn) // marks all four tables as initialized, once
}

type storeParams struct {
	cell.In
	DB        *statedb.DB
	Devices   statedb.RWTable[*devices.Device]
	Addresses statedb.RWTable[devices.Address]
	Routes    statedb.RWTable[*devices.Route]
	Neighbors statedb.RWTable[devices.Neighbor]
	Selector  selector
}

func newStore(p storeParams) *store {
	s := &store{db: p.DB, devices: p.Devices, addresses: p.Addresses, routes: p.Routes, neighbors: p.Neighbors, selector: p.Selector}
	txn := p.DB.WriteTxn(s.tables()...)
	var done []func(statedb.WriteTxn)
	for _, t := range []interface {
		RegisterInitializer(statedb.WriteTxn, string) func(statedb.WriteTxn)
	}{s.devices, s.addresses, s.routes, s.neighbors} {
		done = append(done, t.RegisterInitializer(txn, "netlink"))
	}
	txn.Commit()
	s.complete = func(txn statedb.WriteTxn) {
		for _, f := range done {
			f(txn)
		}
	}
	return s
}

func (s *store) tables() []statedb.TableMeta {
	return []statedb.TableMeta{s.devices, s.addresses, s.routes, s.neighbors}
}

// batch is one write transaction over the tables.
type batch struct {
	*store
	txn     statedb.WriteTxn
	touched map[int]struct{} // links whose selection may have changed
	relist  bool             // the kernel may have dropped routes without a notification
	errs    []error
}

func (s *store) begin() *batch {
	return &batch{store: s, txn: s.db.WriteTxn(s.tables()...), touched: make(map[int]struct{})}
}

// commit selects the touched links again and commits the batch. It reports whether the routes must be listed.
func (b *batch) commit() (relist bool, err error) {
	for index := range b.touched {
		if d, _, found := b.devices.Get(b.txn, devices.ByIndex(index)); found {
			b.putDevice(d)
		}
	}
	b.txn.Commit()
	return b.relist, errors.Join(b.errs...)
}

// apply applies one change.
func (b *batch) apply(c change) {
	switch {
	case c.device != nil && c.gone:
		b.dropLink(c.device.Index)
	case c.device != nil:
		b.putDevice(c.device)
	case c.address != nil && c.gone:
		b.touched[c.address.LinkIndex] = struct{}{}
		b.note(remove(b.txn, b.addresses, *c.address))
		b.relist = b.relist || c.address.Addr().Is4() && b.hasIPv4Route(c.address.LinkIndex) || b.routeFrom(c.address.Addr())
	case c.address != nil:
		b.touched[c.address.LinkIndex] = struct{}{}
		b.note(put(b.txn, b.addresses, devices.AddressByID, *c.address, c.address.Prefix.String(), c.address.LinkIndex))
	case c.route != nil:
		b.applyRoute(c)
	case c.neighbor != nil && c.gone:
		b.note(remove(b.txn, b.neighbors, *c.neighbor))
	case c.neighbor != nil:
		b.note(put(b.txn, b.neighbors, devices.NeighborByID, *c.neighbor, c.neighbor.Addr.String(), c.neighbor.LinkIndex))
	}
}

func (b *batch) putDevice(d *devices.Device) {
	row := *d
	row.Selected, row.Reason = b.evaluate(&row)
	old, _, found := b.devices.Get(b.txn, devices.ByIndex(row.Index))
	if found && *old == row {
		return
	}
	_, _, err := b.devices.Insert(b.txn, &row)
	b.note(err)
	if found && old.Up && !row.Up {
		b.relist = b.relist || b.hasIPv4Route(row.Index)
	}
}

// evaluate runs the selector for a device, with its addresses and routes.
func (b *batch) evaluate(d *devices.Device) (bool, string) {
	defaultRoute, global := false, false
	for r := range b.routes.List(b.txn, devices.RouteByLink(d.Index)) {
		if r.Type != unicast {
			continue
		}
		if r.Dst.Bits() == 0 { // the first of the device's IPv4 routes; the device may have a route to each node
			defaultRoute, global = true, true
			break
		}
		global = global || r.Dst.Addr().IsGlobalUnicast()
	}
	addresses := 0
	for range b.addresses.List(b.txn, devices.AddressByLink(d.Index)) {
		addresses++
	}
	return b.selector.evaluate(d, addresses, defaultRoute, global)
}

// unicast is RTN_UNICAST.
const unicast = 1

// dropLink deletes a link with its routes, addresses and neighbours. The kernel announces most of these too, but on other sockets.
func (b *batch) dropLink(index int) {
	for r := range b.routes.List(b.txn, devices.RouteByLink(index)) {
		b.note(remove(b.txn, b.routes, r))
		b.relist = b.relist || r.Dst.Addr().Is4()
	}
	for a := range b.addresses.List(b.txn, devices.AddressByLink(index)) {
		b.note(remove(b.txn, b.addresses, a))
	}
	for n := range b.neighbors.List(b.txn, devices.NeighborByLink(index)) {
		b.note(remove(b.txn, b.neighbors, n))
	}
	b.note(remove(b.txn, b.devices, &devices.Device{Index: index}))
}

func (b *batch) applyRoute(c change) {
	if c.replacing && !c.gone {
		for old := range b.routes.Prefix(b.txn, devices.RouteByID(c.route[0].Destination())) {
			b.touched[old.LinkIndex] = struct{}{}
			b.note(remove(b.txn, b.routes, old))
		}
	}
	for _, r := range c.route {
		b.touched[r.LinkIndex] = struct{}{}
		if c.gone {
			b.note(remove(b.txn, b.routes, r))
			continue
		}
		b.putRoute(r)
		// The route arrived before its link, or after the link's deletion: only a list distinguishes the cases.
		if _, _, known := b.devices.Get(b.txn, devices.ByIndex(r.LinkIndex)); !known && r.LinkIndex != 0 {
			b.relist = true
		}
	}
}

func (b *batch) putRoute(r *devices.Route) {
	if old, _, found := b.routes.Get(b.txn, devices.RouteByID(r.Key())); found && *old == *r {
		return
	}
	_, _, err := b.routes.Insert(b.txn, r)
	b.note(err)
}

func (b *batch) hasIPv4Route(index int) bool {
	for r := range b.routes.List(b.txn, devices.RouteByLink(index)) {
		if r.Dst.Addr().Is4() {
			return true
		}
	}
	return false
}

// routeFrom reports whether a route prefers a removed IPv4 source address.
func (b *batch) routeFrom(addr netip.Addr) bool {
	if !addr.Is4() {
		return false
	}
	for r := range b.routes.All(b.txn) {
		if r.Src == addr {
			return true
		}
	}
	return false
}

func (b *batch) note(err error) {
	if err != nil {
		b.errs = append(b.errs, err)
	}
}
