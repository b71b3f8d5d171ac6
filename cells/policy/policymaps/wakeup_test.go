package policymaps

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/policy/policycompiler"
	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/identities"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/namedcidrs"
	"github.com/waggle-net/waggle/pkg/tables/policyentries"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// takeOver applies the published rows as the cell endpoint-maps and its reconciler do: each row is pending at first.
func (w *bench) takeOver(t *testing.T, ids ...uint16) {
	t.Helper()
	for _, status := range []reconciler.Status{reconciler.StatusPending(), reconciler.StatusDone()} {
		for _, id := range ids {
			w.apply(t, id, status)
		}
		synctest.Wait()
	}
}

// identityOf returns the identity in the published row of an endpoint, 0 without a row.
func (w *bench) identityOf(id uint16) uint32 {
	synctest.Wait()
	row, _, found := w.Published.Get(w.DB.ReadTxn(), endpointpolicies.ByEndpoint(id))
	if !found {
		return 0
	}
	return row.Identity
}

// webPolicy allows pods with the label app=name to reach the pods of namespace ns-0.
func webPolicy(name, app string) *k8s.NetworkPolicy {
	return &k8s.NetworkPolicy{Namespace: "ns-0", Name: name, IsIngress: true, Ingress: []k8s.PolicyRule{{Peers: []k8s.Peer{{Pods: &k8s.Selector{MatchLabels: map[string]string{"app": app}}}}}}}
}

// TestWakeUp_FactsOfADD: the round that cleans up after an ADD follows when the datapath has applied its row, and not when it has begun to.
func TestWakeUp_FactsOfADD(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newBench(t, 4, 0)
		c, status := w.starts(t)
		status()
		w.takeOver(t, 1, 2, 3, 4)
		began := time.Now()
		w.add(t, 4)
		require.NotZero(t, w.identityOf(5))
		require.Equal(t, []uint16{5}, c.last.untaken)
		w.takeOver(t, 5)
		require.Empty(t, c.last.untaken)
		require.True(t, c.last.settled, "nothing is left to be done")
		require.Zero(t, time.Since(began))
	})
}

// TestWakeUp_NewIdentity: an endpoint with a new identity gets its row when the datapath has applied the policies that know the identity.
func TestWakeUp_NewIdentity(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newBench(t, 0, 0)
		put(t, w.DB, rw(w.KubernetesPolicies), webPolicy("one", "none"))
		w.add(t, 0)
		_, status := w.starts(t)
		status()
		w.takeOver(t, 1)
		began := time.Now()
		txn := w.DB.WriteTxn(rw(w.KubernetesPolicies))
		_, _, err := rw(w.KubernetesPolicies).Delete(txn, webPolicy("one", "none"))
		require.NoError(t, err)
		_, _, err = rw(w.KubernetesPolicies).Insert(txn, webPolicy("two", "app-10"))
		require.NoError(t, err)
		txn.Commit()
		w.add(t, 10)
		require.Zero(t, w.identityOf(11), "the policy of endpoint 1 may not know it")
		w.takeOver(t, 1)
		require.EqualValues(t, 266, w.identityOf(11))
		require.Zero(t, time.Since(began))
	})
}

// TestWakeUp_NothingToApply: the policy of an endpoint changes, for which the datapath has no facts. The next round does not wait for any.
func TestWakeUp_NothingToApply(t *testing.T) {
	t.Parallel()
	for _, quarantined := range []string{"", "link is gone"} {
		synctest.Test(t, func(t *testing.T) {
			w := newBench(t, 0, 0)
			c, status := w.starts(t)
			labels := labelsOf(0, 0)
			put(t, w.DB, w.identities, &identities.Identity{ID: 256, Labels: labels})
			put(t, w.DB, w.of, &identities.EndpointIdentity{EndpointID: 1, Attachment: "0:eth0", Identity: 256, Labels: labels})
			put(t, w.DB, w.endpoints, &endpoints.Endpoint{ID: 1, ContainerID: "0", IfName: "eth0", HostIfIndex: 1, Labels: labels, Quarantine: quarantined})
			require.NotZero(t, w.identityOf(1))
			time.Sleep(time.Nanosecond)
			status()
			require.Equal(t, quarantined != "", c.last.settled, "the facts of an endpoint that is not in quarantine will be added")
			put(t, w.DB, rw(w.KubernetesPolicies), webPolicy("one", "none"))
			status()
			time.Sleep(time.Nanosecond)
			status()
			require.True(t, c.last.settled)
			began := time.Now()
			w.add(t, 10)
			require.EqualValues(t, 266, w.identityOf(11))
			require.Zero(t, time.Since(began))
		})
	}
}

// TestWakeUp_SameFacts: an endpoint gets the id of a deleted one, and its facts are the same. The next round does not wait for other facts.
func TestWakeUp_SameFacts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newBench(t, 0, 0)
		put(t, w.DB, rw(w.KubernetesPolicies), webPolicy("one", "none"))
		w.add(t, 0)
		c, status := w.starts(t)
		w.takeOver(t, 1)
		time.Sleep(time.Nanosecond)
		status()
		require.True(t, c.last.settled)
		labels := labelsOf(0, 0)
		put(t, w.DB, w.of, &identities.EndpointIdentity{EndpointID: 1, Attachment: "1:eth0", Identity: 256, Labels: labels})
		put(t, w.DB, w.endpoints, &endpoints.Endpoint{ID: 1, ContainerID: "1", IfName: "eth0", HostIfIndex: 1, Labels: labels})
		time.Sleep(time.Nanosecond)
		status()
		row, _, _ := w.Published.Get(w.DB.ReadTxn(), endpointpolicies.ByEndpoint(1))
		require.Equal(t, "1:eth0", row.Attachment)
		require.Empty(t, c.last.untaken)
		require.True(t, c.last.settled)
		for policy := range w.Compiled.All(w.DB.ReadTxn()) {
			require.Equal(t, 1, policy.Users)
		}
	})
}

// TestWakeUp_CompleteTables: a table that becomes complete without a change of its rows begins a round.
func TestWakeUp_CompleteTables(t *testing.T) {
	t.Parallel()
	t.Run("identities of endpoints", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			w := newBench(t, 0, 0)
			complete := pendingTable[*identities.EndpointIdentity](w.DB, w.of)
			c, status := w.starts(t)
			require.Contains(t, status(), "policies for")
			require.False(t, c.complete)
			began := time.Now()
			complete()
			status()
			require.True(t, c.complete)
			require.Zero(t, time.Since(began))
		})
	})
	t.Run("endpoints", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			w := newBench(t, 0, 0)
			complete := pendingTable[*endpoints.Endpoint](w.DB, w.endpoints)
			c, status := w.starts(t)
			time.Sleep(inputTimeout)
			require.Contains(t, status(), "policies for")
			w.add(t, 0) // the next round does not wait for the table
			status()
			require.False(t, c.complete)
			began := time.Now()
			complete()
			status()
			require.True(t, c.complete)
			require.Zero(t, time.Since(began))
		})
	})
}

// TestComplete_EndpointWithoutIdentity: only a restored endpoint with a slot delays the table of policies while it has no identity.
func TestComplete_EndpointWithoutIdentity(t *testing.T) {
	t.Parallel()
	for name, restored := range map[string]bool{"restored": true, "new": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newBench(t, 0, 0)
				ep, _ := w.restored(t)
				ep.Restored = restored
				put(t, w.DB, w.endpoints, &ep)
				w.Entries.(fakeEntries).slots[7] = slot{ifindex: 7, identity: 600}
				row := &identities.EndpointIdentity{EndpointID: 7, Attachment: "seven:eth0", Identity: 700, Labels: ep.Labels}
				remove(t, w.DB, w.of, row)
				c, status := w.starts(t)
				time.Sleep(inputTimeout)
				require.Contains(t, status(), "policies for")
				require.Zero(t, w.identityOf(7))
				require.Equal(t, !restored, c.complete, "without a row, endpoint-maps removes the slot, by which a restored endpoint passes packets")
				put(t, w.DB, w.of, row)
				require.EqualValues(t, 700, w.identityOf(7))
				require.True(t, c.complete)
			})
		})
	}
}

// TestWakeUp_CompleteFacts: a restored endpoint without facts delays the announcement of a new identity until the table of facts is complete, if the maps had a
// slot for it. Then the new endpoint gets its row at once.
func TestWakeUp_CompleteFacts(t *testing.T) {
	t.Parallel()
	for _, hadSlot := range []bool{true, false} {
		t.Run(fmt.Sprintf("slot of the previous run %t", hadSlot), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newBench(t, 0, 0)
				complete := pendingTable[*bpfendpoints.Facts](w.DB, w.facts)
				w.restored(t)
				if hadSlot {
					w.Entries.(fakeEntries).slots[7] = slot{ifindex: 7, identity: 700}
				}
				c, status := w.starts(t)
				require.Contains(t, status(), "policies for")
				require.NotZero(t, w.identityOf(7))
				began := time.Now()
				w.add(t, 10)
				if hadSlot {
					require.Zero(t, w.identityOf(11), "the maps may have the slot of the restored endpoint, whose policy does not know the identity")
					require.Equal(t, []uint16{7}, c.last.untaken)
					complete()
				}
				require.EqualValues(t, 266, w.identityOf(11))
				require.NotContains(t, c.views.untaken, uint16(7))
				require.Zero(t, time.Since(began))
			})
		})
	}
}

// TestWakeUp_Copies: a copy of groups on disk is in use until their list arrives, or counts as their list when the timeout expires.
func TestWakeUp_Copies(t *testing.T) {
	t.Parallel()
	for _, listed := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			w := newBench(t, 0, 0)
			put(t, w.DB, rw(w.CiliumPolicies), &cilium.Policy{Namespace: "a", Name: "p",
				Spec: []byte(`{"endpointSelector": {}, "ingress": [{"fromCIDRSet": [{"cidrGroupRef": "g"}]}]}`)})
			put(t, w.DB, rw(w.params.Sources), sources.Source{Table: "cilium-cidrgroups", State: sources.Snapshot})
			c, status := w.starts(t)
			status()
			time.Sleep(inputTimeout - 1)
			status()
			require.False(t, c.previous.settled)
			if listed {
				put(t, w.DB, rw(w.params.Sources), sources.Source{Table: "cilium-cidrgroups", State: sources.Synced})
			} else {
				time.Sleep(time.Nanosecond)
			}
			status()
			require.True(t, c.previous.settled)
		})
	}
}

// TestWakeUp_UnsettledPod: the datapath knows a pod by its former identity for a while. The identity is denied for another grace period after the datapath
// knows the pod by the new one. The row of another endpoint is not applied meanwhile.
func TestWakeUp_UnsettledPod(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newBench(t, 2, 0)
		put(t, w.DB, rw(w.KubernetesPolicies), &k8s.NetworkPolicy{Namespace: "ns-0", Name: "to-web", IsEgress: true, Egress: []k8s.PolicyRule{{
			Peers: []k8s.Peer{{Namespaces: &k8s.Selector{}}}, Ports: []k8s.PolicyPort{{Protocol: "TCP", Port: "web"}}}}})
		put(t, w.DB, w.endpoints, &endpoints.Endpoint{ID: 1, ContainerID: "0", IfName: "eth0", HostIfIndex: 1, IPv4: netip.MustParseAddr("10.0.0.1"), Labels: labelsOf(0, 0)})
		c, status := w.starts(t)
		status()
		w.takeOver(t, 1)
		put(t, w.DB, w.identities, &identities.Identity{ID: 900, Labels: labelsOf(0, 0)})
		put(t, w.DB, w.of, &identities.EndpointIdentity{EndpointID: 1, Attachment: "0:eth0", Identity: 900, Labels: labelsOf(0, 0)})
		as := func() (list []uint32) {
			synctest.Wait()
			for _, p := range c.in.resolver.PodAs("0:eth0") {
				if !p.DenyOnly {
					list = append(list, p.Identity)
				}
			}
			return list
		}
		require.Equal(t, []uint32{900, 256}, as())
		began := time.Now()
		for range 3 {
			if w.identityOf(1) != 900 { // the policies must know it first
				w.takeOver(t, 1)
			}
		}
		require.EqualValues(t, 900, w.identityOf(1))
		w.apply(t, 2, reconciler.StatusPending())
		put(t, w.DB, rw(w.IPCache), ipcache.NewEntry(ipcache.Claim{Prefix: netip.MustParsePrefix("10.9.1.0/32"), Identity: 256}, ""))
		require.Equal(t, []uint32{900, 256}, as())
		require.Equal(t, []uint16{2}, c.last.untaken)
		w.takeOver(t, 1)
		require.Equal(t, []uint32{900}, as())
		require.Zero(t, time.Since(began))
		time.Sleep(identityGrace - 1)
		synctest.Wait()
		require.Len(t, c.in.resolver.PodAs("0:eth0"), 2)
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.Len(t, c.in.resolver.PodAs("0:eth0"), 1)
		require.Empty(t, c.in.peers.unsettled)
	})
}

// TestWakeUp_NothingToWaitFor: a loop that waits for nothing begins no round.
func TestWakeUp_NothingToWaitFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newBench(t, 4, 1)
		rounds, _ := w.start(t)
		w.takeOver(t, 1, 2, 3, 4)
		time.Sleep(time.Second)
		synctest.Wait()
		before := rounds.completed.Load()
		put(t, w.DB, rw(w.IPCache), ipcache.NewEntry(ipcache.Claim{Prefix: netip.MustParsePrefix("10.9.1.0/32"), Identity: 256}, ""))
		synctest.Wait()
		require.Equal(t, before, rounds.completed.Load())
		put(t, w.DB, w.identities, &identities.Identity{ID: 2000, Labels: map[string]string{"k8s:app": "other"}})
		time.Sleep(time.Second)
		synctest.Wait()
		require.Greater(t, rounds.completed.Load(), before)
		before = rounds.completed.Load()
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		require.Equal(t, before, rounds.completed.Load())
	})
}

// TestWakeUp_UnusedClasses: the classes of a deleted identity stay while the datapath has not applied the row of an endpoint that had the identity in the
// previous run. Then they are removed at once.
func TestWakeUp_UnusedClasses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newBench(t, 0, 0)
		w.restored(t)
		fake := w.Entries.(fakeEntries)
		fake.slots[7] = slot{ifindex: 7, identity: 600}
		fake.classes[600] = policycompiler.Classes{Cluster: 1, Namespace: 2}
		c, status := w.starts(t)
		require.EqualValues(t, 700, w.identityOf(7))
		w.apply(t, 7, reconciler.StatusPending())
		time.Sleep(identityGrace + time.Second)
		require.Contains(t, status(), "policies for")
		require.NotContains(t, c.in.known, uint32(600))
		require.NotContains(t, c.in.leaving, uint32(600))
		require.Contains(t, fake.classes, uint32(600))
		w.apply(t, 7, reconciler.StatusDone())
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.NotContains(t, fake.classes, uint32(600))
		require.Contains(t, fake.classes, uint32(700))
	})
}

// TestWakeUp_ForeignRange: a range of another program that the verify job cannot remove is removed by a round.
func TestWakeUp_ForeignRange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newBench(t, 4, 1)
		c, status := w.starts(t)
		w.takeOver(t, 1, 2, 3, 4)
		time.Sleep(time.Second)
		status()
		fake, foreign := w.Entries.(fakeEntries), netip.MustParsePrefix("192.0.2.0/24")
		fake.cidrs[foreign] = lastCIDR
		fake.failures, fake.fail = 1, "delete cidr"
		require.Error(t, (&verifier{controller: c}).compareRanges(t.Context(), &differences{ranges: map[netip.Prefix]string{}}))
		require.Contains(t, fake.cidrs, foreign)
		status()
		require.NotContains(t, fake.cidrs, foreign)
	})
}

// TestWakeUp_MarkedRow: a row that the verify job marks begins one round at once, which writes its entries again. The rows that this round writes begin no other.
func TestWakeUp_MarkedRow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newBench(t, 4, 1)
		put(t, w.DB, rw(w.KubernetesPolicies), addresses("ns-0", "ranges", "app-0", 1, 1))
		rounds, _ := w.start(t)
		w.takeOver(t, 1, 2, 3, 4)
		time.Sleep(time.Second)
		synctest.Wait()

		before, fake := rounds.completed.Load(), w.Entries.(fakeEntries)
		policy := statedb.Collect(w.Compiled.All(w.DB.ReadTxn()))[0]
		entry := slices.Collect(policy.Compiled.Entries())[0]
		require.NoError(t, fake.Delete(policy.ID, entry.Key))
		put(t, w.DB, w.Compiled, policy.Clone().WithStatus(reconciler.StatusPending()))
		synctest.Wait()
		_, written, _ := fake.Get(policy.ID, entry.Key)
		require.True(t, written)
		policy, _, _ = w.Compiled.Get(w.DB.ReadTxn(), policyentries.ByID(policy.ID))
		require.Equal(t, reconciler.StatusKindDone, policy.Status.Kind)
		require.EqualValues(t, 1, rounds.completed.Load()-before)

		w.takeOver(t, 1, 2, 3, 4) // the rows have another revision
		time.Sleep(time.Second)
		synctest.Wait()
		before = rounds.completed.Load()
		byPrefix := namedcidrs.ByPrefix(netip.MustParsePrefix("50.1.0.0/32"))
		named, _, found := w.Named.Get(w.DB.ReadTxn(), byPrefix)
		require.True(t, found)
		put(t, w.DB, w.Named, named.Clone().WithStatus(reconciler.StatusPending()))
		synctest.Wait()
		named, _, _ = w.Named.Get(w.DB.ReadTxn(), byPrefix)
		require.Equal(t, reconciler.StatusKindDone, named.Status.Kind)
		require.EqualValues(t, 1, rounds.completed.Load()-before)
	})
}
