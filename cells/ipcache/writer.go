package ipcache

import (
	"maps"
	"net/netip"
	"sync"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	ipcachetable "github.com/waggle-net/waggle/pkg/tables/ipcache"
)

// writer keeps the claims of all owners and, in the table, the winner for each prefix.
type writer struct {
	db    *statedb.DB
	table statedb.RWTable[*ipcachetable.Entry]

	// mu guards claims. It is taken before the table's lock and held until the commit, so that the table always
	// agrees with the claims.
	mu     sync.Mutex
	claims map[string]claims // by owner; owners are few

	endpointsIn, othersIn func(statedb.WriteTxn) // complete the table's initializers; a second call does nothing
}

// claims is what one owner says.
type claims map[netip.Prefix]ipcachetable.Claim

func newWriter(db *statedb.DB, table statedb.RWTable[*ipcachetable.Entry]) *writer {
	w := &writer{db: db, table: table, claims: make(map[string]claims)}
	txn := db.WriteTxn(table)
	defer txn.Commit()
	w.endpointsIn = table.RegisterInitializer(txn, "endpoints")
	w.othersIn = table.RegisterInitializer(txn, "other-owners")
	return w
}

// Replace implements [ipcachetable.Writer].
func (w *writer) Replace(owner string, list []ipcachetable.Claim) {
	w.replace(owner, list, w.othersIn)
}

// replace exchanges the set of owner and completes an initializer in the same commit.
func (w *writer) replace(owner string, list []ipcachetable.Claim, initialized func(statedb.WriteTxn)) {
	next := make(claims, len(list))
	for _, c := range list {
		c.Prefix = c.Prefix.Masked()
		next[c.Prefix] = c
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	last := w.claims[owner]
	w.claims[owner] = next
	if len(next) == 0 {
		delete(w.claims, owner)
	}
	txn := w.db.WriteTxn(w.table)
	defer txn.Commit()
	for prefix := range changed(last, next) {
		w.settle(txn, prefix)
	}
	if initialized != nil {
		initialized(txn)
	}
}

// settle makes the row of a prefix that of its best claim. A row that is right already keeps its status.
func (w *writer) settle(txn statedb.WriteTxn, prefix netip.Prefix) {
	have, _, found := w.table.Get(txn, ipcachetable.ByPrefix(prefix))
	want := best(w.claims, prefix)
	switch {
	case want == nil && found:
		_, _, _ = w.table.Delete(txn, have)
	case want != nil && (!found || !want.Equal(have)):
		_, _, _ = w.table.Insert(txn, want)
	}
}

// changed returns the prefixes about which two sets differ.
func changed(a, b claims) map[netip.Prefix]struct{} {
	out := make(map[netip.Prefix]struct{})
	for p, c := range a {
		if d, found := b[p]; !found || c != d {
			out[p] = struct{}{}
		}
	}
	for p := range maps.Keys(b) {
		if _, found := a[p]; !found {
			out[p] = struct{}{}
		}
	}
	return out
}

// best picks the winner for a prefix: the highest source, then the owner whose name sorts first.
func best(all map[string]claims, prefix netip.Prefix) *ipcachetable.Entry {
	var winner *ipcachetable.Entry
	for owner, set := range all {
		c, found := set[prefix]
		if !found || (winner != nil && (c.Source < winner.Source || c.Source == winner.Source && owner > winner.Owner)) {
			continue
		}
		winner = &ipcachetable.Entry{Prefix: prefix, Identity: c.Identity, TunnelPeer: c.TunnelPeer, Source: c.Source,
			Owner: owner, Status: reconciler.StatusPending()}
	}
	return winner
}
