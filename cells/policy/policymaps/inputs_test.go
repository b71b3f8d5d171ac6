package policymaps

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/policy/policycompiler"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// CiliumIdentities of pods on other nodes are deleted. The policies keep such an identity as long as ipcache names it.
func TestInputs_DeletedIdentityInIpcache_IsKept(t *testing.T) {
	t.Parallel()
	db := statedb.New()
	table, err := ipcache.NewTable(db)
	if err != nil {
		t.Fatal(err)
	}
	row := ipcache.NewEntry(ipcache.Claim{Prefix: netip.MustParsePrefix("10.2.0.5/32"), Identity: 301}, "")
	txn := db.WriteTxn(table)
	_, _, _ = table.Insert(txn, row)
	txn.Commit()

	gone := time.Now()
	in := &inputs{params: params{DB: db, IPCache: table}, resolver: policycompiler.New(policy.Options{}),
		known: map[uint32]bool{301: true, 302: true}, leaving: map[uint32]time.Time{301: gone, 302: gone}}
	unused := func(uint32) bool { return false }

	if forgotten, again := in.forget(unused, gone.Add(identityGrace-time.Second)); len(in.known) != 2 || len(forgotten) != 0 || again != time.Second {
		t.Errorf("before the grace is over: known %v, again in %s", in.known, again)
	}
	if forgotten, again := in.forget(unused, gone.Add(identityGrace)); len(in.known) != 1 || !slices.Equal(forgotten, []uint32{302}) || !in.known[301] || again <= 0 {
		t.Errorf("while ipcache names 301: known %v, again in %s", in.known, again)
	}
	txn = db.WriteTxn(table)
	_, _, _ = table.Delete(txn, row)
	txn.Commit()
	if forgotten, again := in.forget(unused, gone.Add(2*identityGrace)); len(in.known) != 0 || !slices.Equal(forgotten, []uint32{301}) || again != 0 {
		t.Errorf("when ipcache names none: known %v, again in %s", in.known, again)
	}
}

// After the permission to list groups is removed, endpoints must not keep the policies of the previous run forever: the copy of groups on disk counts as
// their list after a timeout.
func TestSynced_OnlyCopyOfGroups(t *testing.T) {
	t.Parallel()
	w, now := newBench(t, 1, 1), time.Now()
	rows := w.params.Sources.(statedb.RWTable[sources.Source])
	synced := func(at time.Duration) bool {
		txn := w.DB.ReadTxn()
		w.in.read(txn, statedb.NewWatchSet(), now)
		return w.in.synced(txn, now.Add(at))
	}
	put(t, w.DB, rows, sources.Source{Table: w.CIDRGroups.Name(), State: sources.Snapshot})
	if !synced(0) {
		t.Error("it waits for groups to which no policy refers")
	}
	put(t, w.DB, w.CiliumPolicies.(statedb.RWTable[*cilium.Policy]), &cilium.Policy{Namespace: "a", Name: "p",
		Spec: []byte(`{"endpointSelector": {}, "ingress": [{"fromCIDRSet": [{"cidrGroupRef": "g"}]}]}`)})
	if synced(0) || synced(inputTimeout-1) || w.in.copied.left(now.Add(inputTimeout-1)) != 1 {
		t.Error("it does not wait for their list")
	}
	if !synced(inputTimeout) || w.in.copied.left(now.Add(inputTimeout)) != 0 {
		t.Error("it waits for ever")
	}
	put(t, w.DB, rows, sources.Source{Table: w.CiliumPolicies.Name(), State: sources.Snapshot})
	if synced(2 * inputTimeout) {
		t.Error("a copy of policies is taken for their list")
	}
}
