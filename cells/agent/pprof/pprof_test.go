package pprof

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/spf13/pflag"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/hive"
)

// agent is a running hive with the cell.
type agent struct {
	hive    *upstream.Hive
	reports *cell.SimpleHealth
	log     *slog.Logger
}

// start starts the cell. It returns the error of the start.
func start(t *testing.T, out io.Writer, args ...string) (*agent, error) {
	t.Helper()
	a := &agent{log: slog.New(slog.NewTextHandler(out, nil))}
	a.hive = hive.New(celltest.Infrastructure(), Cell, cell.Invoke(func(s *cell.SimpleHealth) { a.reports = s }))
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	a.hive.RegisterFlags(flags)
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	return a, a.hive.Start(a.log, t.Context())
}

func (a *agent) stop(t *testing.T) {
	t.Helper()
	if err := a.hive.Stop(a.log, context.Background()); err != nil {
		t.Error(err)
	}
}

// status returns the health of the server's job; "" before the job has begun.
func status(reports *cell.SimpleHealth) string {
	job := reports.GetChild("pprof.job-serve")
	if job == nil {
		return ""
	}
	job.Lock()
	defer job.Unlock()
	return job.Status
}

// address waits until the server reports its address.
func (a *agent) address(t *testing.T) string {
	t.Helper()
	for range 1500 {
		if address, ok := strings.CutPrefix(status(a.reports), "serving profiles on "); ok {
			return address
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("the server did not start")
	return ""
}

func get(t *testing.T, url string) (code int, body string) {
	t.Helper()
	response, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

func TestServer_ServesProfilesOnLoopback(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	a, err := start(t, &out, "--pprof", "--pprof-port=0")
	if err != nil {
		t.Fatal(err)
	}
	address := a.address(t)
	if at, err := netip.ParseAddrPort(address); err != nil || !at.Addr().IsLoopback() {
		t.Errorf("serves on %s (%v), want a loopback address", address, err)
	}
	for path, want := range map[string]string{
		"/debug/pprof/":                  "full goroutine stack dump",
		"/debug/pprof/goroutine?debug=1": "goroutine profile: total",
		"/debug/pprof/cmdline":           os.Args[0],
		"/debug/pprof/symbol?0x0":        "num_symbols: 1",
		"/metrics":                       "go_sched_latencies_seconds_bucket",
	} {
		if code, body := get(t, "http://"+address+path); code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: status %d without %q:\n%s", path, code, want, body)
		}
	}
	if code, _ := get(t, "http://"+address+"/"); code != http.StatusNotFound {
		t.Errorf("/: status %d, want 404", code)
	}
	a.stop(t)
	if conn, err := net.Dial("tcp", address); err == nil {
		conn.Close()
		t.Error("the server still listens after the stop")
	}
	if strings.Contains(out.String(), "without authentication") {
		t.Errorf("warns of a loopback address:\n%s", out.String())
	}
}

func TestServer_OtherAddress_IsServedWithAWarning(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	a, err := start(t, &out, "--pprof", "--pprof-address=0.0.0.0", "--pprof-port=0")
	if err != nil {
		t.Fatal(err)
	}
	a.address(t)
	a.stop(t)
	if !strings.Contains(out.String(), "level=WARN") || !strings.Contains(out.String(), "without authentication") {
		t.Errorf("does not warn:\n%s", out.String())
	}
}

func TestServer_PortInUse_EndsTheStart(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, port, _ := net.SplitHostPort(taken.Addr().String())
	if _, err := start(t, io.Discard, "--pprof", "--pprof-port="+port); err == nil || !strings.Contains(err.Error(), "change --pprof-address or --pprof-port") {
		t.Errorf("a port that is taken: %v", err)
	}
}

func TestServer_Rates_EndWithTheServer(t *testing.T) {
	t.Parallel()
	a, err := start(t, io.Discard, "--pprof", "--pprof-port=0", "--pprof-mutex-profile-fraction=7", "--pprof-block-profile-rate=1000000")
	if err != nil {
		t.Fatal(err)
	}
	if got := runtime.SetMutexProfileFraction(-1); got != 7 {
		t.Errorf("fraction %d while the server runs, want 7", got)
	}
	a.stop(t)
	if got := runtime.SetMutexProfileFraction(-1); got != 0 {
		t.Errorf("fraction %d after the stop, want 0", got)
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		config   Config
		want     string // address; "" for none
		wantErr  string
		reserved uint16 // port that no Service may use
	}{
		"default":          {config: DefaultConfig},
		"off, wrong value": {config: Config{Address: "here", Port: -1}},
		"on":               {config: Config{Enable: true, Address: "localhost", Port: 6060}, want: "127.0.0.1:6060"},
		"IPv6 loopback":    {config: Config{Enable: true, Address: "::1", Port: 6060}, want: "[::1]:6060"},
		"mapped":           {config: Config{Enable: true, Address: "::ffff:127.0.0.1", Port: 1}, want: "127.0.0.1:1"},
		"of the node":      {config: Config{Enable: true, Address: "192.0.2.1", Port: 6060}, want: "192.0.2.1:6060", reserved: 6060},
		"of the node, v6":  {config: Config{Enable: true, Address: "2001:db8::1", Port: 6061}, want: "[2001:db8::1]:6061", reserved: 6061},
		"a name":           {config: Config{Enable: true, Address: "node.example"}, wantErr: `--pprof-address="node.example": use localhost or an IP address`},
		"no address":       {config: Config{Enable: true}, wantErr: `--pprof-address="": use`},
		"port":             {config: Config{Enable: true, Address: "::1", Port: 65536}, wantErr: "--pprof-port=65536: use"},
		"block":            {config: Config{Enable: true, Address: "::1", BlockProfileRate: -1}, wantErr: "--pprof-block-profile-rate=-1: use"},
		"mutex":            {config: Config{Enable: true, Address: "::1", MutexProfileFraction: -1}, wantErr: "--pprof-mutex-profile-fraction=-1: use"},
	} {
		got, err := newOptions(tc.config)
		if tc.wantErr != "" {
			if err == nil || !strings.HasPrefix(err.Error(), tc.wantErr) {
				t.Errorf("%s: error %v, want %q", name, err, tc.wantErr)
			}
			continue
		}
		address := ""
		if got.enabled() {
			address = got.addr.String()
		}
		if err != nil || address != tc.want {
			t.Errorf("%s: serves on %q (%v), want %q", name, address, err, tc.want)
		}
		if listener := got.listener().Listener; listener != (agentconfig.Listener{Port: tc.reserved, Flag: "pprof-port"}) {
			t.Errorf("%s: reserves %+v, want port %d", name, listener, tc.reserved)
		}
	}
}
