package apiserver

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"reflect"
	"testing"
)

// ask sends a request to the whole handler and decodes the answer.
func ask[T any](t *testing.T, f *fixture, path string, header ...string) (out T) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
	for _, name := range header {
		r.Header.Set(name, "true")
	}
	w := httptest.NewRecorder()
	f.handler.ServeHTTP(w, r)
	if w.Code != http.StatusOK {
		t.Fatalf("GET %s: %d %s", path, w.Code, w.Body)
	}
	if err := json.Unmarshal(w.Body.Bytes(), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestHealthz_EncryptionIsThere: cilium-dbg encrypt status asks briefly, and crashes without this part.
func TestHealthz_EncryptionIsThere(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, header := range [][]string{nil, {"brief"}} {
		status := ask[map[string]any](t, f, "/v1/healthz", header...)
		if want := map[string]any{"mode": "Disabled"}; !reflect.DeepEqual(status["encryption"], want) {
			t.Errorf("%v: got %v, want %v", header, status["encryption"], want)
		}
	}
}
