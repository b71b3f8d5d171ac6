package readiness

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/tables/attachments"
	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
	"github.com/waggle-net/waggle/pkg/tables/desireddevices"
	"github.com/waggle-net/waggle/pkg/tables/desiredroutes"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/health"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/mtus"
	"github.com/waggle-net/waggle/pkg/tables/sources"
	"github.com/waggle-net/waggle/pkg/tables/sysctls"
)

// world holds the tables, initially empty, and functions that complete their initializers.
type world struct {
	db        *statedb.DB
	tables    Tables
	sources   statedb.RWTable[sources.Source]
	node      statedb.RWTable[*localnode.LocalNode]
	mtus      statedb.RWTable[mtus.MTU]
	programs  statedb.RWTable[*attachments.Attachment]
	devices   statedb.RWTable[*desireddevices.Device]
	routes    statedb.RWTable[*desiredroutes.Route]
	sysctls   statedb.RWTable[*sysctls.Setting]
	health    statedb.RWTable[health.Status]
	restored  func(statedb.WriteTxn)
	hosts     statedb.RWTable[*bpfendpoints.Address]
	hostsDone func(statedb.WriteTxn)
	eps       statedb.RWTable[*endpoints.Endpoint]
}

func must[T any](t *testing.T, db *statedb.DB, make func(*statedb.DB) (statedb.RWTable[T], error)) statedb.RWTable[T] {
	t.Helper()
	table, err := make(db)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func newWorld(t *testing.T) *world {
	t.Helper()
	db := statedb.New()
	w := &world{db: db, sources: must(t, db, sources.NewTable), node: must(t, db, localnode.NewTable), mtus: must(t, db, mtus.NewTable),
		programs: must(t, db, attachments.NewTable), devices: must(t, db, desireddevices.NewTable),
		routes: must(t, db, desiredroutes.NewTable), sysctls: must(t, db, sysctls.NewTable), health: must(t, db, health.NewTable), eps: must(t, db, endpoints.NewTable),
		hosts: must(t, db, bpfendpoints.NewAddressTable)}
	txn := db.WriteTxn(w.eps, w.hosts)
	w.hostsDone = w.hosts.RegisterInitializer(txn, bpfendpoints.HostInitializer)
	w.restored = w.eps.RegisterInitializer(txn, "state-files")
	txn.Commit()
	w.tables = Tables{Sources: w.sources, LocalNode: w.node, MTUs: w.mtus, Endpoints: w.eps, Attachments: w.programs,
		Devices: w.devices, Routes: w.routes, Sysctls: w.sysctls, Health: w.health, Hosts: w.hosts}
	return w
}

func insert[T any](t *testing.T, db *statedb.DB, table statedb.RWTable[T], row T) {
	t.Helper()
	txn := db.WriteTxn(table)
	if _, _, err := table.Insert(txn, row); err != nil {
		t.Fatal(err)
	}
	txn.Commit()
}

func (w *world) waiting() []string { return Evaluate(w.db.ReadTxn(), w.tables).Waiting() }

// TestEvaluate_EachMissingCondition meets the conditions of an agent's start one by one.
func TestEvaluate_EachMissingCondition(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	want := []string{
		"table k8s-nodes: manifests: the directory /m",
		"the endpoints of the previous run to be restored",
		"the pod CIDR and the router address of this node",
		"the MTU of the network to be known",
		"the datapath's programs to be loaded",
		"the row of the link waggle_host",
		"link waggle_host to be in the kernel",
		"the row of the program of waggle_host",
		"program host_egress on waggle_host to be in the kernel",
		"the row of the route to 10.1.0.0/24",
		"route 10.1.0.0/24: network is down",
		"kernel setting net/ipv4/ip_forward to be in the kernel",
		"the addresses of this node to be complete in the datapath",
	}
	insert(t, w.db, w.sources, sources.Source{Table: "k8s-nodes", Producer: "manifests", State: sources.Waiting, WaitingFor: "the directory /m"})
	block := &attachments.Attachment{Kind: attachments.Block, Device: "pod-links", Hook: "ingress", Program: "pod_egress"}
	host := &attachments.Attachment{Kind: attachments.TCX, Device: podlink.HostDevice, Hook: "egress", Program: "host_egress"}
	device := &desireddevices.Device{Name: podlink.HostDevice}
	prefix := netip.MustParsePrefix("10.1.0.0/24")
	route := &desiredroutes.Route{Owner: desiredroutes.LocalNode, Table: desiredroutes.MainTable, Dst: prefix, Metric: 100}
	forward := &sysctls.Setting{Name: "net/ipv4/ip_forward", Owner: "base-devices"}
	steps := []func(){
		func() {
			insert(t, w.db, w.sources, sources.Source{Table: "k8s-nodes", Producer: "snapshot", State: sources.Snapshot})
		},
		func() {
			txn := w.db.WriteTxn(w.eps)
			w.restored(txn)
			txn.Commit()
		},
		func() {
			insert(t, w.db, w.node, &localnode.LocalNode{Name: "n", Ready: true, IPv4: localnode.Family{AllocRange: prefix}})
			// A setting of a pod's link is not a condition.
			insert(t, w.db, w.sysctls, &sysctls.Setting{Name: "net/ipv4/conf/lxc1/rp_filter", Owner: sysctls.OwnerPodLinks})
			insert(t, w.db, w.sysctls, forward.Clone())
		},
		func() { insert(t, w.db, w.mtus, mtus.MTU{Prefix: mtus.Default, DeviceMTU: 1500}) },
		func() { insert(t, w.db, w.programs, block.Clone().WithStatus(reconciler.StatusDone())) },
		func() { insert(t, w.db, w.devices, device.Clone()) },
		func() { insert(t, w.db, w.devices, device.Clone().WithStatus(reconciler.StatusDone())) },
		func() { insert(t, w.db, w.programs, host.Clone()) },
		func() { insert(t, w.db, w.programs, host.Clone().WithStatus(reconciler.StatusDone())) },
		func() {
			insert(t, w.db, w.routes, route.Clone().WithStatus(reconciler.StatusError(errors.New("network is down"))))
		},
		func() { insert(t, w.db, w.routes, route.Clone().WithStatus(reconciler.StatusRefreshing())) },
		func() { insert(t, w.db, w.sysctls, forward.Clone().WithStatus(reconciler.StatusDone())) },
		func() {
			txn := w.db.WriteTxn(w.hosts)
			w.hostsDone(txn)
			txn.Commit()
		},
	}
	for i, step := range steps {
		if got := w.waiting(); len(got) == 0 || got[0] != want[i] {
			t.Fatalf("after %d steps: %q, want %q first", i, got, want[i])
		}
		step()
	}
	if v := Evaluate(w.db.ReadTxn(), w.tables); !v.Ready() || len(v.Waiting()) != 0 {
		t.Fatalf("in the end: %+v", v)
	}
	insert(t, w.db, w.programs, block.Clone().WithStatus(reconciler.StatusError(errors.New("busy"))))
	if got := w.waiting(); len(got) != 1 || got[0] != "program pod_egress on pod-links: busy" {
		t.Errorf("a program that cannot be attached: %q", got)
	}
	insert(t, w.db, w.node, &localnode.LocalNode{Name: "n", WaitingFor: "the Node object n"})
	if got := w.waiting(); !slices.Contains(got, "the Node object n") {
		t.Errorf("a node that says what it waits for: %q", got)
	}
}

// TestEvaluate_OptionalSource: an unusable source that only policies may need is not a condition.
func TestEvaluate_OptionalSource(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	without := len(w.waiting())
	insert(t, w.db, w.sources, sources.Source{Table: "cilium-cidrgroups", Producer: "reflectors", State: sources.Waiting, Optional: true})
	if got := w.waiting(); len(got) != without {
		t.Errorf("it waits for %q", got)
	}
}

func TestSummary(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		v              Verdict
		state, message string
	}{
		{Verdict{}, "Ok", "1.2"},
		{Verdict{Degraded: []string{"loader: attach: busy"}}, "Warning", "1.2: degraded: loader: attach: busy"},
		{Verdict{Degraded: []string{"a", "b", "c", "d", "e"}}, "Warning", "1.2: degraded: a; b; c; and 2 more, see the table health"},
		{Verdict{Sources: []string{"a"}, Missing: []string{"b"}, Degraded: []string{"c"}}, "Failure", "1.2: waiting for a; b"},
	} {
		if state, message := tc.v.Summary("1.2"); state != tc.state || message != tc.message {
			t.Errorf("%+v: %s %s", tc.v, state, message)
		}
	}
}

// TestEvaluate_DegradedModule_DoesNotDelayPods: a degraded module is not a condition for the attachment of pods.
func TestEvaluate_DegradedModule_DoesNotDelayPods(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	insert(t, w.db, w.health, health.Status{Module: "agent.loader", Component: "job-x", Level: health.Degraded, Message: "attach", Error: "busy"})
	insert(t, w.db, w.health, health.Status{Module: "agent.ipam", Level: health.OK})
	v := Evaluate(w.db.ReadTxn(), w.tables)
	if want := []string{"agent.loader.job-x: attach: busy"}; !slices.Equal(v.Degraded, want) || slices.Contains(v.Waiting(), want[0]) {
		t.Errorf("%+v", v)
	}
}

func TestDegraded_IsOneShortLine(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ err, want string }{
		{"", "m.c: attach"},
		{"busy\nslow", "m.c: attach: busy; slow"},
		{strings.Repeat("verifier\n", 100), ("m.c: attach: " + strings.Repeat("verifier; ", 100))[:degradedBytes] + "..."},
	} {
		if got := degraded(health.Status{Module: "m", Component: "c", Message: "attach", Error: tc.err}); got != tc.want {
			t.Errorf("%q: %q", tc.err, got)
		}
	}
}
