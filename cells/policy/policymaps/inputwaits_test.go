package policymaps

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/identities"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// The loop of the cell has no poll. These tests run it in virtual time: an event must end the wait for it in no time at all.

// rw returns the writable form of an input.
func rw[R any](table statedb.Table[R]) statedb.RWTable[R] { return table.(statedb.RWTable[R]) }

// pendingTable registers an initializer of a table, and returns a function that makes the table complete without a change of its rows.
func pendingTable[R any](db *statedb.DB, table statedb.Table[R]) (complete func()) {
	txn := db.WriteTxn(rw(table))
	done := rw(table).RegisterInitializer(txn, "test")
	txn.Commit()
	return func() {
		txn := db.WriteTxn(rw(table))
		done(txn)
		txn.Commit()
	}
}

// starts runs another controller with the tables of w until the test ends. It returns the status of its module, read when the controller waits.
func (w *bench) starts(t *testing.T) (c *controller, status func() string) {
	t.Helper()
	c = newController(w.params)
	health, simple := cell.NewSimpleHealth()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- c.run(ctx, health) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-done) })
	return c, func() string {
		synctest.Wait()
		simple.Lock()
		defer simple.Unlock()
		return simple.Status
	}
}

// restored puts a restored endpoint with its pod and its identity, which agree.
func (w *bench) restored(t *testing.T) (ep endpoints.Endpoint, pod k8s.Pod) {
	t.Helper()
	all := map[string]string{"k8s:app": "web", "k8s:io.cilium.k8s.policy.cluster": "default", "k8s:io.kubernetes.pod.namespace": "shop"}
	w.params.Agent.ClusterName = "default"
	ep = endpoints.Endpoint{ID: 7, ContainerID: "seven", IfName: "eth0", HostIfIndex: 7, K8sNamespace: "shop", K8sPodName: "web", K8sUID: "u", Restored: true, Labels: all}
	pod = k8s.Pod{Namespace: "shop", Name: "web", UID: "u", Labels: map[string]string{"app": "web"}}
	put(t, w.DB, rw(w.params.Sources), sources.Source{Table: "k8s-pods", State: sources.Synced})
	put(t, w.DB, rw(w.Namespaces), &k8s.Namespace{Name: "shop"})
	put(t, w.DB, rw(w.Pods), &pod)
	put(t, w.DB, w.endpoints, &ep)
	put(t, w.DB, w.identities, &identities.Identity{ID: 700, Labels: all})
	put(t, w.DB, w.of, &identities.EndpointIdentity{EndpointID: 7, Attachment: "seven:eth0", Identity: 700, Labels: all})
	return ep, pod
}

// inputWaits are the reasons for which no policy is decided. Each prepares the tables and returns the events of which each ends the wait.
var inputWaits = map[string]struct {
	status  string // of the module while it waits
	timeout bool   // the wait also ends after inputTimeout
	prepare func(t *testing.T, w *bench) []func()
}{
	"a required table": {"waiting for the table k8s-namespaces: ", false, func(t *testing.T, w *bench) []func() {
		put(t, w.DB, rw(w.params.Sources), sources.Source{Table: "k8s-namespaces", State: sources.Waiting})
		return []func(){func() {
			put(t, w.DB, rw(w.params.Sources), sources.Source{Table: "k8s-namespaces", State: sources.Snapshot})
		}}
	}},
	"the first identities": {"waiting for the first identities", false, func(t *testing.T, w *bench) []func() {
		host := &identities.Identity{ID: 1, Labels: map[string]string{"reserved:host": ""}}
		remove(t, w.DB, w.identities, host)
		return []func(){func() { put(t, w.DB, w.identities, host) }}
	}},
	"groups to which a policy refers": {"waiting for the table cilium-cidrgroups: ", true, func(t *testing.T, w *bench) []func() {
		p := &cilium.Policy{Namespace: "a", Name: "p", Spec: []byte(`{"endpointSelector": {}, "ingress": [{"fromCIDRSet": [{"cidrGroupRef": "g"}]}]}`)}
		put(t, w.DB, rw(w.CiliumPolicies), p)
		put(t, w.DB, rw(w.params.Sources), sources.Source{Table: "cilium-cidrgroups", State: sources.Waiting})
		return []func(){
			func() {
				put(t, w.DB, rw(w.params.Sources), sources.Source{Table: "cilium-cidrgroups", State: sources.Synced})
			},
			func() { remove(t, w.DB, rw(w.CiliumPolicies), p) },
		}
	}},
	"a table of the other cells": {"waiting for the table k8s-pods: ", false, func(t *testing.T, w *bench) []func() {
		put(t, w.DB, rw(w.params.Sources), sources.Source{Table: "k8s-pods", State: sources.Waiting})
		return []func(){func() { put(t, w.DB, rw(w.params.Sources), sources.Source{Table: "k8s-pods", State: sources.Synced}) }}
	}},
	"restored endpoints": {"waiting for the endpoints of the previous run", true, func(_ *testing.T, w *bench) []func() {
		return []func(){pendingTable(w.DB, w.Endpoints)}
	}},
	"addresses of the node": {"waiting for the addresses of the node", true, func(_ *testing.T, w *bench) []func() {
		return []func(){pendingTable[nodeaddresses.Address](w.DB, w.NodeAddresses)}
	}},
	"the row of a Node": {"waiting for the addresses and ranges of the node a", true, func(t *testing.T, w *bench) []func() {
		n := &k8s.Node{Name: "a", UID: "u"}
		put(t, w.DB, rw(w.KubernetesNodes), n)
		return []func(){
			func() { put(t, w.DB, rw(w.Nodes), &nodes.Node{Name: "a", UID: "u"}) },
			func() { remove(t, w.DB, rw(w.KubernetesNodes), n) },
		}
	}},
	"the row of a CiliumNode": {"waiting for the addresses and ranges of the node a", true, func(t *testing.T, w *bench) []func() {
		n := &cilium.Node{Name: "a"}
		put(t, w.DB, rw(w.CiliumNodes), n)
		return []func(){
			func() { put(t, w.DB, rw(w.Nodes), &nodes.Node{Name: "a", Source: nodes.CiliumNode}) },
			func() { remove(t, w.DB, rw(w.CiliumNodes), n) },
		}
	}},
	"labels of a restored endpoint": {"waiting for the labels of endpoint 7 (shop/web)", true, func(t *testing.T, w *bench) []func() {
		ep, pod := w.restored(t)
		before := pod
		pod.Labels = map[string]string{"app": "web", "new": ""}
		put(t, w.DB, rw(w.Pods), &pod)
		return []func(){
			func() {
				ep.Labels = map[string]string{"k8s:app": "web", "k8s:new": "", "k8s:io.cilium.k8s.policy.cluster": "default", "k8s:io.kubernetes.pod.namespace": "shop"}
				txn := w.DB.WriteTxn(w.endpoints, w.of)
				_, _, _ = w.endpoints.Insert(txn, &ep)
				_, _, _ = w.of.Insert(txn, &identities.EndpointIdentity{EndpointID: 7, Attachment: "seven:eth0", Identity: 700, Labels: ep.Labels})
				txn.Commit()
			},
			func() { put(t, w.DB, rw(w.Pods), &before) },
			func() { remove(t, w.DB, rw(w.Pods), &pod) },
			func() { remove(t, w.DB, w.endpoints, &ep) },
		}
	}},
	"namespace labels of a restored endpoint": {"waiting for the labels of endpoint 7 (shop/web)", true, func(t *testing.T, w *bench) []func() {
		w.restored(t)
		put(t, w.DB, rw(w.Namespaces), &k8s.Namespace{Name: "shop", Labels: map[string]string{"team": "a"}})
		return []func(){func() { put(t, w.DB, rw(w.Namespaces), &k8s.Namespace{Name: "shop"}) }}
	}},
	"named ports of a restored endpoint": {"waiting for the named ports of endpoint 7 (shop/web)", true, func(t *testing.T, w *bench) []func() {
		ep, pod := w.restored(t)
		pod.Ports = []k8s.ContainerPort{{Name: "web", Protocol: "TCP", Number: 80}}
		put(t, w.DB, rw(w.Pods), &pod)
		return []func(){func() { ep.Ports = pod.Ports; put(t, w.DB, w.endpoints, &ep) }}
	}},
	"the identity of a restored endpoint": {"waiting for the identity of endpoint 7 (shop/web)", true, func(t *testing.T, w *bench) []func() {
		ep, _ := w.restored(t)
		row := &identities.EndpointIdentity{EndpointID: 7, Attachment: "seven:eth0", Identity: 700, Labels: ep.Labels}
		remove(t, w.DB, w.of, row)
		return []func(){func() { put(t, w.DB, w.of, row) }}
	}},
	"an identity of the cluster": {"waiting for identity 900", true, func(t *testing.T, w *bench) []func() {
		w.restored(t)
		row := &cilium.Identity{ID: 900, Labels: map[string]string{"k8s:app": "other"}}
		put(t, w.DB, rw(w.CiliumIdentities), row)
		return []func(){
			func() { put(t, w.DB, w.identities, &identities.Identity{ID: 900, Labels: row.Labels}) },
			func() { remove(t, w.DB, rw(w.CiliumIdentities), row) },
		}
	}},
}

// TestWakeUp_Inputs: each event that ends a wait for inputs begins a round.
func TestWakeUp_Inputs(t *testing.T) {
	t.Parallel()
	for name, c := range inputWaits {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for event, events := 0, 1; event < events; event++ {
				synctest.Test(t, func(t *testing.T) {
					w := newBench(t, 0, 0)
					ends := c.prepare(t, w)
					events = len(ends)
					_, status := w.starts(t)
					require.Contains(t, status(), c.status)
					time.Sleep(inputTimeout / 2)
					require.Contains(t, status(), c.status)
					began := time.Now()
					ends[event]()
					require.Contains(t, status(), "policies for", "event %d", event)
					require.Zero(t, time.Since(began))
				})
			}
		})
	}
}

// TestWakeUp_InputTimeout: a wait with a timeout ends when the timeout expires, although no table changes.
func TestWakeUp_InputTimeout(t *testing.T) {
	t.Parallel()
	for name, c := range inputWaits {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newBench(t, 0, 0)
				c.prepare(t, w)
				_, status := w.starts(t)
				require.Contains(t, status(), c.status)
				time.Sleep(inputTimeout - 1)
				require.Contains(t, status(), c.status)
				if time.Sleep(time.Nanosecond); c.timeout {
					require.NotContains(t, status(), c.status)
					return
				}
				require.Contains(t, status(), c.status)
				time.Sleep(time.Hour)
				require.Contains(t, status(), c.status)
			})
		})
	}
}
