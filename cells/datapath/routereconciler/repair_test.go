package routereconciler

import (
	"errors"
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

// comparisonRig is a comparison whose rounds are run by the test.
type comparisonRig struct {
	*comparison
	db       *statedb.DB
	observed statedb.RWTable[*devices.Route]
	links    statedb.RWTable[*devices.Device]
	read     int // observed routes that were read
	ledger   ledger
}

func newComparisonRig(t *testing.T) *comparisonRig {
	t.Helper()
	db := statedb.New()
	r := &comparisonRig{db: db}
	var errs [4]error
	table, err := desiredroutes.NewTable(db)
	r.observed, errs[0] = devices.NewRouteTable(db)
	r.links, errs[1] = devices.NewTable(db)
	addrs, failed := devices.NewAddressTable(db)
	errs[2], errs[3] = err, failed
	require.NoError(t, errors.Join(errs[:]...))
	all := &repair{Drift: drift.Watch{DB: db, Repairs: &r.ledger}, Table: table, Routes: countedRoutes{r.observed, &r.read}, Devices: r.links, Addresses: addrs}
	r.comparison, err = all.follow()
	require.NoError(t, err)
	t.Cleanup(r.comparison.close)
	return r
}

// rowTo returns the row of the route to a node.
func rowTo(i int) *desiredroutes.Route {
	return &desiredroutes.Route{Owner: "test", Table: desiredroutes.MainTable, Dst: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24),
		Device: "eth0", Gw: netip.MustParseAddr("192.0.2.1"), Status: reconciler.StatusDone()}
}

// change changes tables in one commit.
func (r *comparisonRig) change(do func(statedb.WriteTxn) []error) {
	txn := r.db.WriteTxn(r.Table, r.observed, r.links)
	defer txn.Commit()
	if err := errors.Join(do(txn)...); err != nil {
		panic(err)
	}
}

// add adds the route to a node, desired and observed.
func (r *comparisonRig) add(i int) {
	r.change(func(txn statedb.WriteTxn) []error {
		_, _, err1 := r.Table.Insert(txn, rowTo(i))
		_, _, err2 := r.observed.Insert(txn, observedAs(wanted(rowTo(i), 2)))
		return []error{err1, err2}
	})
}

func (r *comparisonRig) pending() (keys []string) {
	for row := range r.Table.All(r.db.ReadTxn()) {
		if row.Status.Kind == reconciler.StatusKindPending {
			keys = append(keys, row.Key())
		}
	}
	return keys
}

// TestRepair_ReadsFewRoutes has the routes to many nodes over one device. The first comparison reads one observed route for each row. Later comparisons read
// only the changed ones, until a device changes.
func TestRepair_ReadsFewRoutes(t *testing.T) {
	t.Parallel()
	const count = 300
	r := newComparisonRig(t)
	link := &devices.Device{Index: 2, Name: "eth0", Up: true}
	r.change(func(txn statedb.WriteTxn) []error {
		_, _, err := r.links.Insert(txn, link)
		return []error{err}
	})
	for i := range count {
		r.add(i)
	}
	later := time.Now().Add(2 * drift.Grace)
	round := func() (read int) {
		r.read = 0
		require.Zero(t, r.compare(r.db.ReadTxn(), later))
		return r.read
	}
	require.Equal(t, count, round())
	require.Zero(t, round(), "nothing has changed")
	r.add(count)
	require.Equal(t, 1, round(), "a node has joined")
	r.change(func(txn statedb.WriteTxn) []error {
		again := *link
		again.MTU = 1400
		_, _, err := r.links.Insert(txn, &again)
		return []error{err}
	})
	require.Equal(t, count+1, round(), "a device has changed")
	require.Empty(t, r.ledger.findings)

	r.change(func(txn statedb.WriteTxn) []error {
		_, _, err1 := r.observed.Delete(txn, observedAs(wanted(rowTo(7), 2)))
		changed := observedAs(wanted(rowTo(8), 2))
		changed.MTU = 1300
		_, _, err2 := r.observed.Insert(txn, changed)
		return []error{err1, err2}
	})
	require.LessOrEqual(t, round(), 4)
	lost := []string{rowTo(7).Key(), rowTo(8).Key()}
	require.Equal(t, []driftrepairs.Finding{{Kind: driftrepairs.Route, What: lost[0], Found: "missing"}, {Kind: driftrepairs.Route, What: lost[1], Found: "changed"}},
		r.ledger.findings)
	require.Equal(t, lost, r.pending())
}

// TestRepair_ChecksYoungRowsAgain has a row without a route in the kernel. Within the grace period the row stays due without a change.
func TestRepair_ChecksYoungRowsAgain(t *testing.T) {
	t.Parallel()
	r := newComparisonRig(t)
	row := rowTo(1)
	r.change(func(txn statedb.WriteTxn) []error {
		_, _, err1 := r.links.Insert(txn, &devices.Device{Index: 2, Name: "eth0", Up: true})
		_, _, err2 := r.Table.Insert(txn, row)
		return []error{err1, err2}
	})
	for _, age := range []time.Duration{0, drift.Grace / 2} {
		require.Equal(t, drift.Grace-age, r.compare(r.db.ReadTxn(), row.Status.UpdatedAt.Add(age)))
		require.Empty(t, r.pending())
	}
	require.Zero(t, r.compare(r.db.ReadTxn(), row.Status.UpdatedAt.Add(drift.Grace)))
	require.Equal(t, []string{row.Key()}, r.pending())
}

// TestKeysOf_FindTheirRow checks that each row is found by its route in the kernel.
func TestKeysOf_FindTheirRow(t *testing.T) {
	t.Parallel()
	for _, dst := range []string{"10.1.0.0/24", "fd00::/64"} {
		for _, metric := range []int{0, 7, 1024} {
			row := &desiredroutes.Route{Table: desiredroutes.MainTable, Dst: netip.MustParsePrefix(dst), Metric: metric}
			require.Contains(t, keysOf(observedAs(wanted(row, 2))), row.Key())
		}
	}
}
