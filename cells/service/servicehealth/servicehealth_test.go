package servicehealth

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"go.uber.org/goleak"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/hive"
	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/tables/attachments"
	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
	"github.com/waggle-net/waggle/pkg/tables/desireddevices"
	"github.com/waggle-net/waggle/pkg/tables/desiredroutes"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
	"github.com/waggle-net/waggle/pkg/tables/health"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/mtus"
	"github.com/waggle-net/waggle/pkg/tables/services"
	"github.com/waggle-net/waggle/pkg/tables/sources"
	"github.com/waggle-net/waggle/pkg/tables/sysctls"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// node runs the cell with its input tables.
type node struct {
	t        *testing.T
	hive     *upstream.Hive
	log      *slog.Logger
	db       *statedb.DB
	services statedb.RWTable[*services.Service]
	nodes    statedb.RWTable[*k8s.Node]
	ready    func() // completes all inputs of readiness
	ports    statedb.Table[*port]
}

// inputs are the tables that the cell reads, and the settings of the node n1.
func inputs() cell.Cell {
	return cell.Provide(
		func() agentconfig.Agent { return agentconfig.Agent{NodeName: "n1", KubeProxyReplacement: true} },
		frontends.NewTable, statedb.RWTable[*frontends.Frontend].ToTable,
		services.NewTable, statedb.RWTable[*services.Service].ToTable, k8s.NewNodeTable, statedb.RWTable[*k8s.Node].ToTable,
		sources.NewTable, statedb.RWTable[sources.Source].ToTable, localnode.NewTable, statedb.RWTable[*localnode.LocalNode].ToTable,
		mtus.NewTable, statedb.RWTable[mtus.MTU].ToTable, endpoints.NewTable, statedb.RWTable[*endpoints.Endpoint].ToTable,
		attachments.NewTable, statedb.RWTable[*attachments.Attachment].ToTable,
		desireddevices.NewTable, statedb.RWTable[*desireddevices.Device].ToTable,
		desiredroutes.NewTable, statedb.RWTable[*desiredroutes.Route].ToTable,
		sysctls.NewTable, statedb.RWTable[*sysctls.Setting].ToTable, health.NewTable, statedb.RWTable[health.Status].ToTable,
		bpfendpoints.NewAddressTable, statedb.RWTable[*bpfendpoints.Address].ToTable,
	)
}

// start runs the cell, with values of flags.
func start(t *testing.T, flags map[string]any) *node {
	t.Helper()
	n := &node{t: t}
	n.hive = hive.New(celltest.Infrastructure(),
		inputs(),
		cell.Invoke(func(db *statedb.DB, s statedb.RWTable[*services.Service], nodes statedb.RWTable[*k8s.Node],
			local statedb.RWTable[*localnode.LocalNode], mtu statedb.RWTable[mtus.MTU],
			programs statedb.RWTable[*attachments.Attachment], links statedb.RWTable[*desireddevices.Device],
		) {
			n.db, n.services, n.nodes = db, s, nodes
			n.ready = func() {
				done := reconciler.StatusDone()
				put(n, local, &localnode.LocalNode{Name: "n1", Ready: true})
				put(n, mtu, mtus.MTU{Prefix: mtus.Default, DeviceMTU: 1500})
				put(n, links, &desireddevices.Device{Name: podlink.HostDevice, Status: done})
				put(n, programs, &attachments.Attachment{Kind: attachments.Block, Device: "pod-links", Hook: "ingress", Status: done})
				put(n, programs, &attachments.Attachment{Kind: attachments.TCX, Device: podlink.HostDevice, Hook: "egress", Status: done})
			}
		}),
		cell.Module("under-test", "Service health under test", Cell,
			cell.Invoke(func(ports statedb.Table[*port]) { n.ports = ports })),
	)
	n.hive.Viper().MergeConfigMap(flags)
	n.log = hivetest.Logger(t, hivetest.LogLevel(slog.LevelError))
	if err := n.hive.Start(n.log, t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.hive.Stop(n.log, context.Background()); err != nil {
			t.Error(err)
		}
	})
	return n
}

func put[R any](n *node, table statedb.RWTable[R], row R) {
	n.t.Helper()
	txn := n.db.WriteTxn(table)
	if _, _, err := table.Insert(txn, row); err != nil {
		n.t.Fatal(err)
	}
	txn.Commit()
}

// free returns a port that is currently unused.
func free(t testing.TB) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return uint16(l.Addr().(*net.TCPAddr).Port)
}

func ask(url string) (code int, weight, body string, err error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	r, err := client.Get(url)
	if err != nil {
		return 0, "", "", err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	return r.StatusCode, r.Header.Get("X-Load-Balancing-Endpoint-Weight"), string(bytes.TrimSpace(text)), err
}

// eventually waits for a response, in both families.
func eventually(t *testing.T, number uint16, want string) {
	t.Helper()
	for _, host := range []string{"127.0.0.1", "[::1]"} {
		got := ""
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			code, weight, body, err := ask(fmt.Sprintf("http://%s:%d/whatever", host, number))
			if got = fmt.Sprint(code, " ", weight, " ", body); err != nil {
				got = err.Error()
			}
			if strings.Contains(got, want) {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%s: got %s, want %s", host, got, want)
			}
		}
	}
}

func TestPorts_InUse_AreRetried(t *testing.T) {
	t.Parallel()
	n := start(t, nil)
	squatter, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	number := uint16(squatter.Addr().(*net.TCPAddr).Port)
	put(n, n.services, &services.Service{Name: "shop/web", HealthCheckNodePort: number, LocalReady: 1})
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		row, _, found := n.ports.Get(n.db.ReadTxn(), byNumber(number))
		if found && strings.Contains(row.Status.GetError(), "Service shop/web") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the row does not say what is wrong: %+v", row)
		}
	}
	if err := squatter.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, number, "200 1 ")
}

func TestPorts_OffByFlag(t *testing.T) {
	t.Parallel()
	n, number := start(t, map[string]any{"enable-health-check-nodeport": false}), free(t)
	put(n, n.services, &services.Service{Name: "shop/web", HealthCheckNodePort: number, LocalReady: 1})
	if _, _, body, err := ask(fmt.Sprintf("http://127.0.0.1:%d/", number)); err == nil {
		t.Errorf("answered %s", body)
	}
}

func TestPorts_Conflict_FirstNameWins(t *testing.T) {
	t.Parallel()
	want, problems := ports([]*services.Service{{Name: "a/b", HealthCheckNodePort: 30001}, {Name: "a/c", HealthCheckNodePort: 30001}})
	if len(want) != 1 || want[30001].Service != "a/b" || len(problems) != 1 || problems[0] != "30001 is answered for a/b, not for a/c" {
		t.Errorf("got %+v, %q", want, problems)
	}
}

func TestHealthz(t *testing.T) {
	t.Parallel()
	number := free(t)
	n := start(t, map[string]any{"kube-proxy-replacement-healthz-bind-address": fmt.Sprintf("127.0.0.1:%d", number)})
	for _, step := range []struct {
		name string
		do   func()
		code int
		want string
	}{
		{"while starting", func() { put(n, n.nodes, &k8s.Node{Name: "n1"}) }, 503, `"nodeEligible":true`},
		{"ready", n.ready, 200, `"lastUpdated":"`},
		{"another node leaves", func() { put(n, n.nodes, &k8s.Node{Name: "n2", TaintKeys: []string{leaving}}) }, 200, `"nodeEligible":true`},
		{"this node leaves", func() { put(n, n.nodes, &k8s.Node{Name: "n1", TaintKeys: []string{"x", leaving}}) }, 503, `"nodeEligible":false`},
	} {
		step.do()
		code, _, body, err := ask(fmt.Sprintf("http://127.0.0.1:%d/healthz", number))
		if err != nil || code != step.code || !strings.Contains(body, step.want) {
			t.Errorf("%s: got %d %s, %v; want %d %s", step.name, code, body, err, step.code, step.want)
		}
	}
}

func TestConfig_NamesTheFlag(t *testing.T) {
	t.Parallel()
	if err := (Config{HealthzAddress: "10256"}).check(); err == nil || !strings.Contains(err.Error(), "--kube-proxy-replacement-healthz-bind-address") {
		t.Errorf("got %v", err)
	}
}
