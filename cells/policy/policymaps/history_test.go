package policymaps

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/policy/policycompiler"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/identities"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/policies"
	"github.com/waggle-net/waggle/pkg/tables/sources"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// evaluateAll makes the next round evaluate all policies, endpoints, ranges and identities, as if each of them had changed.
func (c *controller) evaluateAll() {
	c.in.all, c.cidrs.moved = true, true
	for ref := range c.in.policies {
		c.in.unshown[ref] = true
	}
	for word := range c.known.wanted {
		c.known.differ[uint32(word)] = true
	}
}

// history is a loop of the cell with its inputs, which change at random in virtual time.
type history struct {
	*bench
	t      *testing.T
	random *rand.Rand
	c      *controller // of the loop; the controller of bench does nothing
	tight  bool        // policies exceed quotas and the capacity of maps, and writes fail
	checks int         // number of evaluations of everything
}

// TestRun_AnyHistory_NeedsNoFullEvaluation: after any change, and after any time, the loop has acted on all inputs. An evaluation of everything changes no row
// and no map. After the other cells have followed the changes, the result is that of a new loop with the same inputs.
func TestRun_AnyHistory_NeedsNoFullEvaluation(t *testing.T) {
	t.Parallel()
	for name, tight := range map[string]bool{"in ample maps": false, "in full maps": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			random := testseed.New(t)
			synctest.Test(t, func(t *testing.T) { testHistory(t, random, tight) })
		})
	}
}

func testHistory(t *testing.T, random *rand.Rand, tight bool) {
	h := &history{bench: newBench(t, 0, 0), t: t, random: random, tight: tight}
	fake := h.Entries.(fakeEntries).fakeMaps
	fake.cidrCapacity = 1000
	if tight {
		fake.capacity, fake.cidrCapacity, h.params.Config.NamespaceCIDRs, h.params.Config.NamespaceEntries = capacity{15, 8}, 4, 3, 9
	}
	h.params.Agent.NodeName = "bee"
	put(t, h.DB, rw(h.params.Sources), sources.Source{Table: "k8s-pods", State: sources.Synced})
	c, stop := h.loop()
	h.c = c
	defer stop()
	entries, peers, ranges, problems := 0, 0, 0, 0
	for n := range 400 {
		for range 1 + random.IntN(4) {
			h.change()
			if random.IntN(3) == 0 {
				synctest.Wait()
			}
		}
		if random.IntN(4) > 0 {
			h.follows(t, 4)
		}
		time.Sleep([]time.Duration{1550, 3550, 20550, 130550}[random.IntN(4)] * time.Millisecond)
		synctest.Wait()
		problems += len(c.problems)
		for retries := 0; len(c.problems) > 0 && retries < 6; retries++ { // at most three writes have failed
			time.Sleep(maxRetry + 50*time.Millisecond)
			h.follows(t, 4)
		}
		h.requireComplete(n)
		if tight || n%2 > 0 {
			continue
		}
		h.follow()
		h.settle(t)
		require.Empty(t, c.problems, "after change %d", n)
		h.requireComplete(n)
		fresh := h.fresh()
		require.Equal(t, fresh.enforced(), h.enforced(), "after change %d", n)
		require.Equal(t, fresh.policyTable(), h.policyTable(), "after change %d", n)
		entries, ranges = entries+len(fake.entries), ranges+len(fake.cidrs)
		if c.in.peers.loaded {
			peers++
		}
	}
	require.Greater(t, h.checks, 200)
	if tight {
		require.Greater(t, problems, 10)
		return
	}
	require.Greater(t, entries, 500)
	require.Greater(t, ranges, 200)
	require.Greater(t, peers, 20, "comparisons while rules name ports of peers")
}

// loop runs a new controller with the tables of the bench until stop is called.
func (w *bench) loop() (c *controller, stop func()) {
	c = newController(w.params)
	health, _ := cell.NewSimpleHealth()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- c.run(ctx, health) }()
	synctest.Wait()
	return c, func() {
		cancel()
		if err := <-done; err != nil {
			panic(err)
		}
	}
}

// follows makes the datapath apply all rows, and the loop act on that, n times.
func (w *bench) follows(t *testing.T, n int) {
	t.Helper()
	for range n {
		for id := range uint16(7) {
			w.apply(t, id, reconciler.StatusDone())
		}
		time.Sleep(time.Microsecond)
		synctest.Wait()
	}
}

// settle makes the datapath follow until nothing is left to be done, and deleted identities and former pods are forgotten.
func (w *bench) settle(t *testing.T) {
	t.Helper()
	w.follows(t, 20)
	time.Sleep(identityGrace + 2*time.Second)
	w.follows(t, 20)
}

// kernel is the contents of the maps.
type kernel struct {
	entries map[entryKey]policycompiler.Entry
	cidrs   map[netip.Prefix]uint32
	known   []uint32
	classes map[uint32]policycompiler.Classes
}

func (h *history) kernel() kernel {
	f := h.Entries.(fakeEntries).fakeMaps
	f.mu.Lock()
	defer f.mu.Unlock()
	return kernel{maps.Clone(f.entries), maps.Clone(f.cidrs), identitiesIn(f.known), maps.Clone(f.classes)}
}

// revisions returns the revisions of the tables that the cell writes.
func (h *history) revisions() map[string]statedb.Revision {
	txn := h.DB.ReadTxn()
	return map[string]statedb.Revision{h.Published.Name(): h.Published.Revision(txn), h.Policies.Name(): h.Policies.Revision(txn),
		h.Compiled.Name(): h.Compiled.Revision(txn), h.Named.Name(): h.Named.Revision(txn), h.ClassTable.Name(): h.ClassTable.Revision(txn),
		h.Progress.Name(): h.Progress.Revision(txn)}
}

// requireComplete makes the loop evaluate everything, and requires that it writes nothing. A loop that waits for the datapath has not done everything.
func (h *history) requireComplete(n int) {
	h.t.Helper()
	if len(h.c.last.untaken) > 0 {
		return
	}
	h.checks++
	contents, tables := h.kernel(), h.revisions()
	h.c.mu.Lock()
	h.c.evaluateAll()
	(&verifier{controller: h.c}).requestRound()
	h.c.mu.Unlock()
	synctest.Wait()
	time.Sleep(time.Microsecond) // another round may follow at once
	synctest.Wait()
	require.False(h.t, h.c.in.all, "the loop has run a round")
	require.Equal(h.t, contents, h.kernel(), "after change %d", n)
	require.Equal(h.t, tables, h.revisions(), "after change %d", n)
}

// follow makes the rows of other cells agree with their inputs, as these cells do: the labels, identities and addresses of endpoints, and the addresses of pods on
// other nodes.
func (h *history) follow() {
	h.t.Helper()
	put(h.t, h.DB, rw(h.params.Sources), sources.Source{Table: h.Slices.Name(), State: sources.Synced}) // a new loop waits for the table
	txn := h.DB.WriteTxn(h.endpoints, h.of, h.identities, rw(h.IPCache))
	defer txn.Commit()
	named, of, addresses := map[uint32]*identities.Identity{}, map[uint16]*identities.EndpointIdentity{}, map[ipcache.Key]*ipcache.Entry{}
	for _, ep := range statedb.Collect(h.endpoints.All(txn)) {
		if ep.LabelsMissing != "" {
			ep = ep.Clone()
			ep.LabelsMissing = ""
			_, _, _ = h.endpoints.Insert(txn, ep)
		}
		number := numberOf(ep.Labels)
		named[number] = &identities.Identity{ID: number, Labels: ep.Labels}
		of[ep.ID] = &identities.EndpointIdentity{EndpointID: ep.ID, Attachment: ep.AttachmentID(), Identity: number, Labels: ep.Labels}
		if ep.IPv4.IsValid() {
			e := ipcache.NewEntry(ipcache.Claim{Prefix: netip.PrefixFrom(ep.IPv4, 32), Identity: number, Source: ipcache.SourceLocal}, "endpoints")
			addresses[e.Key()] = e
		}
	}
	for o := range h.Remote.All(txn) {
		if _, _, found := h.identities.Get(txn, identities.ByID(o.Identity())); !found {
			named[o.Identity()] = &identities.Identity{ID: o.Identity(), Labels: labelsOf(1, 1)}
		}
		for _, addr := range o.Addrs() {
			node := h.hostOf(txn, o, addr)
			claim := ipcache.Claim{Prefix: netip.PrefixFrom(addr, 32), Identity: o.Identity(), Node: node, Source: ipcache.SourceRemote}
			e := ipcache.NewEntry(claim, ipcache.OwnerCiliumEndpoints)
			if addresses[e.Key()] == nil && node != "" {
				addresses[e.Key()] = e
			}
		}
	}
	for _, row := range named {
		_, _, _ = h.identities.Insert(txn, row)
	}
	replaceRows(txn, h.of, of, func(row *identities.EndpointIdentity) uint16 { return row.EndpointID })
	replaceRows(txn, rw(h.IPCache), addresses, (*ipcache.Entry).Key)
}

// replaceRows makes rows all rows of a table. It leaves equal rows unchanged.
func replaceRows[K comparable, R interface{ Equal(R) bool }](txn statedb.WriteTxn, table statedb.RWTable[R], rows map[K]R, key func(R) K) {
	for _, old := range statedb.Collect(table.All(txn)) {
		if row, found := rows[key(old)]; !found {
			_, _, _ = table.Delete(txn, old)
		} else if row.Equal(old) {
			delete(rows, key(old))
		}
	}
	for _, row := range rows {
		_, _, _ = table.Insert(txn, row)
	}
}

// hostOf returns the node of a pod that claims an address, "" if the node may not have the address.
func (h *history) hostOf(txn statedb.ReadTxn, o *cilium.Endpoint, addr netip.Addr) string {
	for n := range h.Nodes.All(txn) {
		if n.Addresses[0].Addr == o.Node() && n.CIDRs[0].Contains(addr) {
			return n.Name
		}
	}
	return ""
}

// numberOf returns the identity of a set of labels.
func numberOf(labels map[string]string) uint32 {
	hash := fnv.New32a()
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		fmt.Fprintln(hash, key, labels[key])
	}
	return 20_000 + hash.Sum32()%40_000
}

// fresh returns the result of a new loop with copies of the inputs.
func (h *history) fresh() *bench {
	f := newBench(h.t, 0, 0)
	f.params.Agent = h.params.Agent
	copyRows(h.bench, f, func(w *bench) statedb.Table[*endpoints.Endpoint] { return w.endpoints })
	copyRows(h.bench, f, func(w *bench) statedb.Table[*identities.Identity] { return w.identities })
	copyRows(h.bench, f, func(w *bench) statedb.Table[*identities.EndpointIdentity] { return w.of })
	copyInputs(h.bench, f)
	_, stop := f.loop()
	defer stop()
	f.settle(h.t)
	return f
}

func copyRows[R any](from, to *bench, table func(*bench) statedb.Table[R]) {
	txn := to.DB.WriteTxn(rw(table(to)))
	defer txn.Commit()
	for row := range table(from).All(from.DB.ReadTxn()) {
		if _, _, err := rw(table(to)).Insert(txn, row); err != nil {
			panic(err)
		}
	}
}

// policyTable returns the rows of the table policies, in order.
func (w *bench) policyTable() (rows []policies.Policy) {
	for row := range w.Policies.All(w.DB.ReadTxn()) {
		rows = append(rows, *row)
	}
	return rows
}

// enforced describes what the maps and the tables enforce, without the numbers that depend on the history: of policies, classes and ranges.
func (w *bench) enforced() string {
	var out strings.Builder
	txn, f := w.DB.ReadTxn(), w.Entries.(fakeEntries).fakeMaps
	ranges, classes, used := map[uint32]string{}, map[uint32]string{}, map[uint32]bool{}
	for prefix, number := range f.cidrs {
		ranges[number] = prefix.String()
	}
	for row := range w.ClassTable.All(txn) {
		classes[row.Number] = fmt.Sprint(row.Labels)
	}
	peer := func(k policycompiler.Key) string {
		switch k.Kind {
		case policycompiler.Class:
			return classes[k.Identity]
		case policycompiler.CIDR, policycompiler.CIDROutside:
			return ranges[k.Identity]
		}
		return fmt.Sprint(k.Identity)
	}
	policy := func(id uint32) []string {
		var list []string
		for key, e := range f.entries {
			if key.ID == id {
				list = append(list, fmt.Sprint(e.Kind, " ", peer(e.Key), " ", e.Protocol, " ", e.Port, "/", e.PortBits, " ", e.Deny))
			}
		}
		used[id] = true
		return slices.Sorted(slices.Values(list))
	}
	for row := range w.Published.All(txn) {
		fmt.Fprintln(&out, row.EndpointID, row.Attachment, "identity", row.Identity, "error", row.Error, row.Ingress.Isolated, row.Egress.Isolated)
		for _, id := range idsOf(row) {
			fmt.Fprintf(&out, "  %d %q\n", min(id, 2), policy(id))
		}
	}
	for key := range f.entries {
		if !used[key.ID] {
			fmt.Fprintln(&out, "unused entry", key)
		}
	}
	fmt.Fprintln(&out, "ranges", slices.Sorted(maps.Values(ranges)), "classes", slices.Sorted(maps.Values(classes)), "known", identitiesIn(f.known))
	for _, id := range slices.Sorted(maps.Keys(f.classes)) {
		fmt.Fprintln(&out, "identity", id, classes[f.classes[id].Cluster], classes[f.classes[id].Namespace])
	}
	for row := range w.Named.All(txn) {
		fmt.Fprintln(&out, row.Prefix, row.Retired, row.Status.Kind)
	}
	for row := range w.Compiled.All(txn) {
		if row.Status.Kind != reconciler.StatusKindDone || row.Users == 0 {
			fmt.Fprintln(&out, "policy", row.ID, row.Users, row.Status.Kind)
		}
	}
	return out.String()
}
