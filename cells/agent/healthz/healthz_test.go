package healthz

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/statedb"
	"go.uber.org/goleak"

	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/hive"
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

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tables are the empty tables of readiness, as after the start of an agent.
var tables = cell.Group(
	cell.ProvidePrivate(sources.NewTable, localnode.NewTable, mtus.NewTable, endpoints.NewTable, attachments.NewTable, health.NewTable,
		desireddevices.NewTable, desiredroutes.NewTable, sysctls.NewTable, bpfendpoints.NewAddressTable),
	cell.Provide(
		statedb.RWTable[sources.Source].ToTable, statedb.RWTable[*localnode.LocalNode].ToTable, statedb.RWTable[mtus.MTU].ToTable,
		statedb.RWTable[*endpoints.Endpoint].ToTable, statedb.RWTable[*attachments.Attachment].ToTable, statedb.RWTable[health.Status].ToTable,
		statedb.RWTable[*desireddevices.Device].ToTable, statedb.RWTable[*desiredroutes.Route].ToTable, statedb.RWTable[*sysctls.Setting].ToTable,
		statedb.RWTable[*bpfendpoints.Address].ToTable,
	),
)

func TestHandler_WhileStarting(t *testing.T) {
	t.Parallel()
	var h handler
	agent := hive.New(celltest.Infrastructure(), tables, cell.ProvidePrivate(newHandler), cell.Invoke(func(got handler) { h = got }))
	if err := agent.Populate(hivetest.Logger(t)); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		path string
		code int
		want string
	}{
		{"/livez", 200, "Ok - "},
		{"/readyz", 503, "Failure - "},
		{"/healthz", 200, "Ok - "},
		{"/other", 404, "404"},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", tc.path, nil))
		if w.Code != tc.code || !strings.HasPrefix(w.Body.String(), tc.want) {
			t.Errorf("%s: %d %s", tc.path, w.Code, w.Body)
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/readyz", nil))
	if !strings.Contains(w.Body.String(), "waiting for the pod CIDR and the router address of this node") {
		t.Errorf("it does not say what is missing: %s", w.Body)
	}
}

// freePort returns a port that is free on both families at the time of the call.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func TestCell_ListensAndStops(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	agent := hive.New(celltest.Infrastructure(), tables, Cell)
	agent.Viper().Set("agent-health-port", port)
	log := hivetest.Logger(t, hivetest.LogLevel(slog.LevelError))
	if err := agent.Start(log, t.Context()); err != nil {
		t.Fatal(err)
	}
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	url := fmt.Sprintf("http://127.0.0.1:%d/livez", port)
	r, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(r.Body)
	r.Body.Close()
	if r.StatusCode != 200 {
		t.Errorf("%d %s", r.StatusCode, body)
	}
	if err := agent.Stop(log, context.Background()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Get(url); err == nil {
		t.Error("the port still answers")
	}
}

func TestPort(t *testing.T) {
	t.Parallel()
	for _, bad := range []int{-1, 65536} {
		if _, err := newPort(Config{Port: bad}); err == nil || !strings.Contains(err.Error(), "--agent-health-port") {
			t.Errorf("%d: %v", bad, err)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := listen(uint16(l.Addr().(*net.TCPAddr).Port)); err == nil || !strings.Contains(err.Error(), "--agent-health-port: listen on") {
		t.Errorf("a port that is taken: %v", err)
	}
}
