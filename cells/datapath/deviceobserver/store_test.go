package deviceobserver

import (
	"errors"
	"iter"
	"net/netip"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/tables/devices"
)

// countedRoutes counts the rows that List yields.
type countedRoutes struct {
	statedb.RWTable[*devices.Route]
	read *int
}

func (c countedRoutes) List(txn statedb.ReadTxn, q statedb.Query[*devices.Route]) iter.Seq2[*devices.Route, statedb.Revision] {
	return func(yield func(*devices.Route, statedb.Revision) bool) {
		for row, revision := range c.RWTable.List(txn, q) {
			*c.read++
			if !yield(row, revision) {
				return
			}
		}
	}
}

// TestStore_SelectionReadsFewRoutes adds a route to a device that has a default route and routes to many nodes. The selection of the device reads only the
// default route.
func TestStore_SelectionReadsFewRoutes(t *testing.T) {
	t.Parallel()
	db := statedb.New()
	links, err1 := devices.NewTable(db)
	addrs, err2 := devices.NewAddressTable(db)
	routes, err3 := devices.NewRouteTable(db)
	neighbors, err4 := devices.NewNeighborTable(db)
	require.NoError(t, errors.Join(err1, err2, err3, err4))
	read := 0
	s := newStore(storeParams{DB: db, Devices: links, Addresses: addrs, Routes: countedRoutes{routes, &read}, Neighbors: neighbors, Selector: selector{detect: true}})
	add := func(changes ...change) {
		b := s.begin()
		defer b.txn.Abort()
		for _, c := range changes {
			b.apply(c)
		}
		_, err := b.commit()
		require.NoError(t, err)
	}
	to := func(dst netip.Prefix) change {
		return change{route: []*devices.Route{{Table: 254, Dst: dst, LinkIndex: 2, Gw: netip.MustParseAddr("192.0.2.1"), Type: unicast}}}
	}
	node := func(i int) change {
		return to(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24))
	}
	add(change{device: &devices.Device{Index: 2, Name: "eth0", Up: true}}, change{address: &devices.Address{LinkIndex: 2, Prefix: netip.MustParsePrefix("192.0.2.7/24")}})
	for i := range 300 {
		add(node(i))
	}
	read = 0
	add(to(netip.MustParsePrefix("0.0.0.0/0")))
	require.Equal(t, 1, read)
	read = 0
	add(node(300))
	require.Equal(t, 1, read)
	d, _, found := links.Get(db.ReadTxn(), devices.ByIndex(2))
	require.True(t, found && d.Selected)
}
