package k8sclient

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/pkg/tables/apiservers"
)

func TestLog_OneLineForEachOutage(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := params{Log: slog.New(slog.NewTextHandler(&out, nil))}
	second := apiservers.Server{Server: "https://b", Reachable: apiservers.No, Error: "never active"}
	unavailable := false
	for _, step := range []struct {
		active apiservers.Server
		line   string // empty for none
	}{
		{apiservers.Server{Reachable: apiservers.Unknown}, ""},
		{apiservers.Server{Reachable: apiservers.Yes}, ""},
		{apiservers.Server{Reachable: apiservers.No, Error: "refused"}, "level=WARN msg=\"The API server is unusable, and is retried\" server=https://a error=refused"},
		{apiservers.Server{Reachable: apiservers.No, Error: "time-out"}, ""},
		{apiservers.Server{Reachable: apiservers.Unknown}, ""},
		{apiservers.Server{Reachable: apiservers.Yes}, "level=INFO msg=\"The API server responds again\" server=https://a"},
		{apiservers.Server{Reachable: apiservers.Yes}, ""},
	} {
		step.active.Server, step.active.Active = "https://a", true
		out.Reset()
		unavailable = p.log([]apiservers.Server{step.active, second}, unavailable)
		if got := out.String(); strings.Contains(got, "level=") != (step.line != "") || !strings.Contains(got, step.line) || strings.Count(got, "\n") > 1 {
			t.Errorf("%+v: logged %q, want %q", step.active, got, step.line)
		}
	}
}

// TestExplain_NamesServerFlag: an update without --k8s-api-server must not look like an outage.
func TestExplain_NamesServerFlag(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		config Config
		row    apiservers.Server
		want   bool
	}{
		{Config{}, apiservers.Server{Reachable: apiservers.No, Error: "no route"}, true},
		{Config{}, apiservers.Server{Reachable: apiservers.Yes, Error: "forbidden"}, false},
		{Config{Servers: []string{"https://192.0.2.1"}}, apiservers.Server{Reachable: apiservers.No, Error: "no route"}, false},
	} {
		config := DefaultConfig
		config.Servers = tc.config.Servers
		settings, err := newSettings(config, inPod(t, "token", "ca.crt"))
		if err != nil {
			t.Fatal(err)
		}
		rows := []apiservers.Server{tc.row}
		params{Settings: settings}.explain(rows)
		if got := strings.Contains(rows[0].Error, "--k8s-api-server"); got != tc.want {
			t.Errorf("%+v, %+v: %q", tc.config, tc.row, rows[0].Error)
		}
	}
}
