package apiserver

import (
	"strings"
	"testing"
)

// A client of Cilium uses the health API only if nodes are probed.
func TestHealthz_WithoutHealthChecking(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const want = `"ciliumHealth":{"msg":"nodes are not probed","state":"Disabled"}`
	if body := read(t, f.request("GET", "/v1/healthz", "")); !strings.Contains(body, want) || strings.Contains(body, "cilium-health-ep") {
		t.Errorf("%s, want %s", body, want)
	}
}
