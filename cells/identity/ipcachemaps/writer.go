package ipcachemaps

import (
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/tables/ipcache"
)

// writer stores the claims of all owners, and the winner of each prefix in the table.
type writer struct {
	db    *statedb.DB
	table statedb.RWTable[*ipcache.Entry]

	// mu guards claims and byNode. It is locked before the table and held until the commit, so that the table always matches them.
	mu     sync.Mutex
	claims map[string]claims // by owner; there are few owners. For an owner that updates, it has only the losing claims: see [writer.recall]
	byNode byNode
	uses   uses // ids and addresses of nodes with which the rows were written

	// complete has the table's initializers, by owner. A second call of one does nothing.
	complete map[string]func(statedb.WriteTxn)
}

// claims is the set of one owner.
type claims map[netip.Prefix]ipcache.Claim

// nodeIDs names the initializer of the table that waits for the ids of nodes.
const nodeIDs = "node-ids"

// owners must contribute all their claims before the table is initialized.
var owners = []string{ipcache.OwnerEndpoints, ipcache.OwnerCiliumEndpoints, ipcache.OwnerHost, ipcache.OwnerNodes,
	ipcache.OwnerOverlay}

func newWriter(db *statedb.DB, table statedb.RWTable[*ipcache.Entry]) *writer {
	w := &writer{db: db, table: table, claims: make(map[string]claims), byNode: newByNode(), uses: uses{of: map[string]use{}},
		complete: make(map[string]func(statedb.WriteTxn))}
	txn := db.WriteTxn(table)
	defer txn.Commit()
	for _, owner := range append(slices.Clip(owners), nodeIDs) {
		w.complete[owner] = table.RegisterInitializer(txn, owner)
	}
	return w
}

// Replace implements [ipcache.Writer] for owners that replace their whole set.
func (w *writer) Replace(owner string, list []ipcache.Claim, complete bool) {
	next := make(claims, len(list))
	for _, c := range list {
		c.Prefix = c.Prefix.Masked()
		next[c.Prefix] = c
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	prefixes := changed(w.claims[owner], next)
	w.claims[owner] = next
	w.commit(owner, len(prefixes), complete, func(txn statedb.WriteTxn) {
		for prefix := range prefixes {
			w.settle(txn, prefix, func() {})
		}
	})
}

// updates reports whether an owner contributes changes and never replaces its whole set. It may have a claim for each pod or node of the cluster.
func updates(owner string) bool {
	switch owner {
	case ipcache.OwnerEndpoints, ipcache.OwnerCiliumEndpoints, ipcache.OwnerNodes, ipcache.OwnerOverlay:
		return true
	}
	return false
}

// Update implements [ipcache.Writer] for owners that contribute changes.
func (w *writer) Update(owner string, put []ipcache.Claim, remove []netip.Prefix, complete bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.claims[owner] == nil {
		w.claims[owner] = make(claims)
	}
	changes := make(map[netip.Prefix]ipcache.Claim, len(put)+len(remove)) // a claim without a prefix is a removal
	for _, p := range remove {
		changes[p] = ipcache.Claim{}
	}
	for _, c := range put {
		changes[c.Prefix] = c
	}
	txn := w.db.ReadTxn() // the table changes only under mu
	maps.DeleteFunc(changes, func(p netip.Prefix, c ipcache.Claim) bool { return w.claim(txn, owner, p) == c })
	w.commit(owner, len(changes), complete, func(txn statedb.WriteTxn) {
		for prefix, claim := range changes {
			w.settle(txn, prefix, func() {
				if w.claims[owner][prefix] = claim; !claim.Prefix.IsValid() {
					delete(w.claims[owner], prefix)
				}
			})
		}
	})
}

// identity returns the identity that an owner for which [updates] is true claims for a prefix; 0 without a claim.
func (w *writer) identity(owner string, prefix netip.Prefix) uint32 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.claim(w.db.ReadTxn(), owner, prefix).Identity
}

// claim returns the claim of an owner for which [updates] is true; the zero value without a claim. The caller must hold mu.
func (w *writer) claim(txn statedb.ReadTxn, owner string, prefix netip.Prefix) ipcache.Claim {
	if row, _, found := w.table.Get(txn, ipcache.ByPrefix(prefix)); found && row.Owner() == owner {
		return claimOf(row)
	}
	return w.claims[owner][prefix]
}

// claimOf returns the claim of a row.
func claimOf(row *ipcache.Entry) ipcache.Claim {
	return ipcache.Claim{Prefix: row.Prefix(), Identity: row.Identity, Node: row.Node(), Source: row.Source}
}

// commit applies changes of an owner in one transaction, and completes the owner's initializer if complete is set. The caller must hold mu.
func (w *writer) commit(owner string, changes int, complete bool, change func(statedb.WriteTxn)) {
	done := w.complete[owner]
	if changes == 0 && (!complete || done == nil) {
		return
	}
	txn := w.db.WriteTxn(w.table)
	defer txn.Commit()
	change(txn)
	if complete && done != nil {
		done(txn)
		delete(w.complete, owner)
	}
}

// settle applies a change to the claims of a prefix, and writes the winning claim to the prefix's row. A row that already matches keeps its status.
func (w *writer) settle(txn statedb.WriteTxn, prefix netip.Prefix, change func()) {
	have, _, found := w.table.Get(txn, ipcache.ByPrefix(prefix))
	if found {
		w.recall(have)
	}
	change()
	want := best(w.claims, prefix)
	if want != nil && updates(want.Owner()) {
		delete(w.claims[want.Owner()], prefix)
	}
	switch {
	case want == nil && found:
		_, _, _ = w.table.Delete(txn, have)
	case want != nil && (!found || !want.Equal(have)):
		if found {
			want.Replaces(have)
		}
		_, _, _ = w.table.Insert(txn, want)
	default:
		return
	}
	w.index(have, want)
}

// index updates byNode when a row is replaced. Either row may be nil.
func (w *writer) index(have, want *ipcache.Entry) {
	if have != nil && want != nil && have.Node() == want.Node() {
		return
	}
	if have != nil && have.Node() != "" {
		if w.byNode.remove(have); !w.byNode.has(have.Node()) {
			w.uses.forget(have.Node())
		}
	}
	if want != nil && want.Node() != "" {
		w.byNode.add(want)
	}
}

// nodes returns the names of the nodes of all rows.
func (w *writer) nodes() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.byNode.nodes()
}

// mark marks rows pending whose node has another id (true) or only another address (false). Rows of pods depend on the id alone. With complete set, it
// completes the initializer of node ids.
func (w *writer) mark(differ map[string]bool, complete bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	done := w.complete[nodeIDs]
	changed := complete && done != nil
	if len(differ) == 0 && !changed {
		return
	}
	txn := w.db.WriteTxn(w.table)
	defer txn.Abort()
	for name, id := range differ {
		for key := range w.byNode.keys(name) {
			e, _, found := w.table.Get(txn, ipcache.ByKey(key))
			if found && (id || e.Owner() != ipcache.OwnerCiliumEndpoints) {
				_, _, _ = w.table.Insert(txn, e.Clone().WithStatus(reconciler.StatusPending()))
				changed = true
			}
		}
	}
	if complete && done != nil {
		done(txn)
		delete(w.complete, nodeIDs)
	}
	if changed { // a commit without a change would wake all watchers of the table
		txn.Commit()
	}
}

// recall puts the winning claim of a row back into claims. An owner's winning claim is stored only in its row, because a claim takes as much memory as a row.
func (w *writer) recall(row *ipcache.Entry) {
	if updates(row.Owner()) {
		w.claims[row.Owner()][row.Prefix()] = claimOf(row)
	}
}

// changed returns the prefixes whose claims differ between two sets.
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

// best returns the winning claim of a prefix: the highest source, then the owner whose name sorts first.
func best(all map[string]claims, prefix netip.Prefix) *ipcache.Entry {
	var winner *ipcache.Entry
	for owner, set := range all {
		c, found := set[prefix]
		if !found || (winner != nil && (c.Source < winner.Source || c.Source == winner.Source && owner > winner.Owner())) {
			continue
		}
		winner = ipcache.NewEntry(ipcache.Claim{Prefix: prefix, Identity: c.Identity, Node: c.Node, Source: c.Source}, owner)
	}
	if winner != nil {
		winner.WithStatus(reconciler.StatusPending())
	}
	return winner
}
