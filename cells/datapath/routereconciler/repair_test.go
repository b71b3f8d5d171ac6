package routereconciler

import (
	"iter"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/drift"
	"github.com/waggle-net/waggle/pkg/tables/desiredroutes"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/driftrepairs"
)

// countedRoutes counts the rows that queries of the table routes yield.
type countedRoutes struct {
	statedb.Table[*devices.Route]
	read *int
}

func (c countedRoutes) List(txn statedb.ReadTxn, q statedb.Query[*devices.Route]) iter.Seq2[*devices.Route, statedb.Revision] {
	return c.count(c.Table.List(txn, q))
}

func (c countedRoutes) Prefix(txn statedb.ReadTxn, q statedb.Query[*devices.Route]) iter.Seq2[*devices.Route, statedb.Revision] {
	return c.count(c.Table.Prefix(txn, q))
}

func (c countedRoutes) All(txn statedb.ReadTxn) iter.Seq2[*devices.Route, statedb.Revision] {
	return c.count(c.Table.All(txn))
}

func (c countedRoutes) count(rows iter.Seq2[*devices.Route, statedb.Revision]) iter.Seq2[*devices.Route, statedb.Revision] {
	return func(yield func(*devices.Route, statedb.Revision) bool) {
		for row, revision := range rows {
			*c.read++
			if !yield(row, revision) {
				return
			}
		}
	}
}

// ledger records findings.
type ledger struct{ findings []driftrepairs.Finding }

func (l *ledger) Record(f ...driftrepairs.Finding) { l.findings = append(l.findings, f...) }

// TestRepair_ReadsEachRouteOnce compares the routes to many nodes over one device. A comparison reads one observed route for each row, not all routes of the
// device.
func TestRepair_ReadsEachRouteOnce(t *testing.T) {
	t.Parallel()
	const count = 300
	db := statedb.New()
	table, err1 := desiredroutes.NewTable(db)
	observed, err2 := devices.NewRouteTable(db)
	links, err3 := devices.NewTable(db)
	for _, err := range []error{err1, err2, err3} {
		require.NoError(t, err)
	}
	read, found := 0, &ledger{}
	r := &repair{Drift: drift.Watch{DB: db, Repairs: found}, Table: table, Routes: countedRoutes{observed, &read}, Devices: links}
	rows := make([]*desiredroutes.Route, count)
	txn := db.WriteTxn(table, observed, links)
	_, _, err := links.Insert(txn, &devices.Device{Index: 2, Name: "eth0", Up: true})
	require.NoError(t, err)
	for i := range rows {
		rows[i] = &desiredroutes.Route{Owner: "test", Table: desiredroutes.MainTable, Dst: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24),
			Device: "eth0", Gw: netip.MustParseAddr("192.0.2.1"), Status: reconciler.StatusDone()}
		_, _, err1 := table.Insert(txn, rows[i])
		_, _, err2 := observed.Insert(txn, observedAs(wanted(rows[i], 2)))
		require.NoError(t, err1)
		require.NoError(t, err2)
	}
	txn.Commit()
	later := time.Now().Add(2 * drift.Grace)
	require.Zero(t, r.mark(db.ReadTxn(), later))
	require.Equal(t, count, read)
	require.Empty(t, found.findings)

	txn = db.WriteTxn(observed)
	_, _, err = observed.Delete(txn, observedAs(wanted(rows[7], 2)))
	require.NoError(t, err)
	changed := observedAs(wanted(rows[8], 2))
	changed.MTU = 1300
	_, _, err = observed.Insert(txn, changed)
	require.NoError(t, err)
	txn.Commit()
	require.Zero(t, r.mark(db.ReadTxn(), later))
	require.Equal(t, []driftrepairs.Finding{{Kind: driftrepairs.Route, What: rows[7].Key(), Found: "missing"}, {Kind: driftrepairs.Route, What: rows[8].Key(), Found: "changed"}},
		found.findings)
}
