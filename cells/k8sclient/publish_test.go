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
	away := false
	for _, step := range []struct {
		active apiservers.Server
		line   string // empty for none
	}{
		{apiservers.Server{Reachable: apiservers.Unknown}, ""},
		{apiservers.Server{Reachable: apiservers.Yes}, ""},
		{apiservers.Server{Reachable: apiservers.No, Error: "refused"}, "level=WARN msg=\"The API server is of no use, and is tried again\" server=https://a error=refused"},
		{apiservers.Server{Reachable: apiservers.No, Error: "time-out"}, ""},
		{apiservers.Server{Reachable: apiservers.Unknown}, ""},
		{apiservers.Server{Reachable: apiservers.Yes}, "level=INFO msg=\"The API server answers again\" server=https://a"},
		{apiservers.Server{Reachable: apiservers.Yes}, ""},
	} {
		step.active.Server, step.active.Active = "https://a", true
		out.Reset()
		away = p.log([]apiservers.Server{step.active, second}, away)
		if got := out.String(); strings.Contains(got, "level=") != (step.line != "") || !strings.Contains(got, step.line) || strings.Count(got, "\n") > 1 {
			t.Errorf("%+v: logged %q, want %q", step.active, got, step.line)
		}
	}
}
