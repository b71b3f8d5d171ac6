package apiserver

import (
	"encoding/json"
	"strings"
	"testing"
)

// FuzzPut sends arbitrary bodies through the complete handler: the reply is JSON with an expected status and without terminal escapes, and a rejected body
// creates no endpoint.
func FuzzPut(f *testing.F) {
	f.Add(put)
	f.Add(`{"container-id":"` + strings.Repeat("x", 10_000) + `","mac":"\u001b[2J"}`)
	f.Add(`{"addressing":{"ipv4":"::ffff:1.2.3.4%eth0"},"properties":{"netns-path":"../../etc"}}`)
	f.Add(`{"labels":["a","reserved:host=","=;"],"interface-index":-1,"netns-cookie":"99999999999999999999"}`)
	f.Fuzz(func(t *testing.T, body string) {
		fx := newFixture(t)
		r := fx.request("PUT", "/v1/endpoint/cilium-local:0", body)
		text := read(t, r)
		if !json.Valid([]byte(text)) || strings.ContainsRune(text, '\x1b') || len(text) > 16<<10 {
			t.Fatalf("%d %q", r.StatusCode, text)
		}
		switch made := len(fx.manager.created); {
		case r.StatusCode == 201 && made == 1, (r.StatusCode == 400 || r.StatusCode == 413) && made == 0:
		default:
			t.Fatalf("answered %d and made %d endpoints", r.StatusCode, made)
		}
	})
}

// FuzzRoutes sends requests to arbitrary paths: no handler may panic.
func FuzzRoutes(f *testing.F) {
	f.Add("GET", "/v1/endpoint/ipv4:1.2.3.4")
	f.Add("DELETE", "/v1/ipam/fe80::1%25eth0")
	f.Add("GET", "/v1/policy/explain?from=10.0.1.8&to=shop/cart&port=80/TCP")
	f.Add("GET", "/v1/policy/explain?from=fe80::1%25eth0&to=id:300&port=8/ICMPv6")
	f.Add("GET", "/v1//endpoint/%2e%2e/%00")
	f.Add("GET", "/statedb/dump/x/../y")
	f.Fuzz(func(t *testing.T, method, path string) {
		if !validRequest(method, path) {
			return // an HTTP client cannot send it
		}
		fx := newFixture(t)
		if r := fx.request(method, path, ""); r.StatusCode == 500 && strings.Contains(read(t, r), "panicked") {
			t.Fatalf("%s %s: %s", method, path, read(t, r))
		}
	})
}
