package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/datapath/events"
	"github.com/waggle-net/waggle/pkg/datapath/pinnedmaps"
	"github.com/waggle-net/waggle/pkg/hive"
	"github.com/waggle-net/waggle/pkg/tables/bpfmaps"
	"github.com/waggle-net/waggle/pkg/tables/endpointstates"
	"github.com/waggle-net/waggle/pkg/tables/health"
	"github.com/waggle-net/waggle/pkg/tables/ipamaddresses"
	"github.com/waggle-net/waggle/pkg/testnet"
)

// noMaps is a datapath whose maps are not open or cannot be read.
type noMaps struct{ err error }

func (m noMaps) Get(string) (*ebpf.Map, error)              { return nil, m.err }
func (m noMaps) All() (map[string]*ebpf.Map, error)         { return nil, m.err }
func (m noMaps) Put(string, any, any) error                 { return m.err }
func (m noMaps) Delete(string, any) error                   { return m.err }
func (m noMaps) Entries(string) ([]pinnedmaps.Entry, error) { return nil, m.err }

// fill inserts a row into each table that the collector reads.
func fill(db *statedb.DB, h statedb.RWTable[health.Status], e statedb.RWTable[*endpointstates.EndpointState],
	a statedb.RWTable[ipamaddresses.Address], m statedb.RWTable[*bpfmaps.Map]) error {
	txn := db.WriteTxn(h, e, a, m)
	defer txn.Abort()
	_, _, err1 := h.Insert(txn, health.Status{Module: "loader", Level: health.Degraded})
	_, _, err2 := e.Insert(txn, &endpointstates.EndpointState{ID: 7, State: endpointstates.Ready})
	_, _, err3 := a.Insert(txn, ipamaddresses.Address{Addr: netip.MustParseAddr("10.0.0.7"), State: ipamaddresses.Claimed})
	_, _, err4 := a.Insert(txn, ipamaddresses.Address{Addr: netip.MustParseAddr("fd00::7"), State: ipamaddresses.Quarantined})
	_, _, err5 := m.Insert(txn, &bpfmaps.Map{Name: "ipcache", MaxEntries: 512, Memory: 4096})
	txn.Commit()
	return errors.Join(err1, err2, err3, err4, err5)
}

// serve starts the cell with the tables of other cells and returns the URL of the metrics, or "" if the cell does not listen.
func serve(t *testing.T, datapath pinnedmaps.Maps, args ...string) (url string, err error) {
	t.Helper()
	var reports *cell.SimpleHealth
	h := hive.New(celltest.Infrastructure(), Cell,
		inputs(datapath),
		cell.Invoke(fill, func(s *cell.SimpleHealth) { reports = s }),
		cell.Module("bees", "A module whose job fails", cell.Invoke(func(jobs job.Group) {
			jobs.Add(job.OneShot("dance", func(context.Context, cell.Health) error { return errors.New("no floor") }))
		})),
	)
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	h.RegisterFlags(flags)
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	log := hivetest.Logger(t, hivetest.LogLevel(slog.LevelError+1))
	if err := h.Start(log, t.Context()); err != nil {
		return "", err
	}
	t.Cleanup(func() {
		if err := h.Stop(log, context.Background()); err != nil {
			t.Error(err)
		}
	})
	if len(args) == 0 {
		return "", nil
	}
	for range 6000 {
		if job := reports.GetChild("metrics.job-serve"); job != nil {
			job.Lock()
			status := job.Status
			job.Unlock()
			if address, ok := strings.CutPrefix(status, "serving on "); ok {
				return "http://" + address + "/metrics", nil
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("the server did not start")
	return "", nil
}

func scrape(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d, %v: %s", resp.StatusCode, err, body)
	}
	return string(body)
}

func TestScrape_ReadsTables(t *testing.T) {
	t.Parallel()
	url, err := serve(t, noMaps{pinnedmaps.ErrNotOpen}, "--prometheus-serve-addr=127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		`waggle_hive_status{level="Degraded"} 1`,
		`waggle_hive_status{level="OK"} 0`,
		`waggle_endpoint_state{state="ready"} 1`,
		`waggle_ipam_addresses{family="ipv4",state="claimed"} 1`,
		`waggle_ipam_addresses{family="ipv6",state="quarantined"} 1`,
		`waggle_bpf_map_max_entries{map="ipcache"} 512`,
		`waggle_bpf_map_memory_bytes{map="ipcache"} 4096`,
		`waggle_statedb_table_objects{table="ipam-addresses"} 2`,
		`waggle_metrics_read_errors_total 0`,
		`waggle_hive_populate_duration_seconds`,
		`waggle_statedb_write_txn_duration_seconds_count{handle="DB"}`,
		`process_resident_memory_bytes`,
		`waggle_job_errors_total{job="dance"} 1`,
	}
	var got string
	for range 6000 { // the failing job may not have run yet
		if got = scrape(t, url); strings.Contains(got, `waggle_job_errors_total{job="dance"}`) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	for _, w := range want {
		if !strings.Contains(got, w) {
			t.Errorf("the scrape does not say %q", w)
		}
	}
	if t.Failed() {
		t.Log(got)
	}
}

func TestScrape_CountsReadErrors(t *testing.T) {
	t.Parallel()
	url, err := serve(t, noMaps{errors.New("pin does not fit")}, "--prometheus-serve-addr=127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	scrape(t, url)
	got := scrape(t, url)
	if !strings.Contains(got, "waggle_metrics_read_errors_total 2") || !strings.Contains(got, "waggle_endpoint_state") {
		t.Errorf("scrape:\n%s", got)
	}
}

func TestServer_Address(t *testing.T) {
	t.Parallel()
	if url, err := serve(t, noMaps{}); err != nil || url != "" {
		t.Errorf("without the flag: %q, %v", url, err)
	}
	if _, err := serve(t, noMaps{}, "--prometheus-serve-addr=9962"); err == nil ||
		!strings.Contains(err.Error(), `--prometheus-serve-addr="9962": want host:port`) {
		t.Errorf("an address without a port: %v", err)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	if _, err := serve(t, noMaps{}, fmt.Sprintf("--prometheus-serve-addr=%s", taken.Addr())); err == nil ||
		!strings.Contains(err.Error(), "change --prometheus-serve-addr") {
		t.Errorf("an address that is taken: %v", err)
	}
}

// TestDefinitions checks the naming rules and that each name is listed once.
func TestDefinitions(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, d := range Definitions() {
		ours := strings.HasPrefix(d.Name, "waggle_") || strings.HasPrefix(d.Name, "cilium_") // metrics with Cilium's names have Cilium's meaning
		if seen[d.Name] || !ours || !strings.HasSuffix(d.Help, ".") ||
			(d.Kind == counter) != strings.HasSuffix(d.Name, "_total") {
			t.Errorf("definition %+v", d)
		}
		seen[d.Name] = true
	}
}

func TestPrivilegedReadCounters(t *testing.T) {
	testnet.RequirePrivileges(t)
	t.Parallel()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 16, MaxEntries: 256 * 3})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	perCPU := make([]bpf.MetricsValue, ebpf.MustPossibleCPU())
	for i := range perCPU {
		perCPU[i] = bpf.MetricsValue{Packets: 2, Bytes: 100}
	}
	if err := m.Put(bpf.MetricsSlot(uint8(events.SourceIP), bpf.DirectionEgress), perCPU); err != nil {
		t.Fatal(err)
	}
	got, err := readCounters(m)
	if err != nil {
		t.Fatal(err)
	}
	n := uint64(len(perCPU))
	want := counted{verdict{events.SourceIP.String(), "egress"}, 2 * n, 100 * n}
	if len(got) != 1 || got[0] != want {
		t.Errorf("counters %+v, want %+v", got, want)
	}
}

// fakeCounters are the counters of a fake datapath.
type fakeCounters []counted

func (f fakeCounters) Read() ([]counted, error) { return f, nil }

// onlyPackets collects only the counters of the datapath.
type onlyPackets struct{ *collector }

func (o onlyPackets) Collect(out chan<- prometheus.Metric) { o.collectPackets(out) }

// A packet whose VNI differs from the identity in ipcache is counted once, by its verdict.
func TestScrape_DifferentVNI_CountedOnce(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	registry.MustRegister(onlyPackets{newCollector(tableParams{Counters: fakeCounters{
		{verdict{events.Forwarded.String(), "ingress"}, 5, 500}, {verdict{events.VNIDiffers.String(), "ingress"}, 2, 200}}})})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			got[family.GetName()] += m.GetCounter().GetValue()
		}
	}
	want := map[string]float64{"waggle_datapath_packets_total": 5, "waggle_datapath_bytes_total": 500, "waggle_tunnel_identity_differs_total": 2}
	if !maps.Equal(got, want) {
		t.Errorf("counters %v, want %v", got, want)
	}
}
