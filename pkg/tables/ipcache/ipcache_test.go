package ipcache

import (
	"encoding/json"
	"errors"
	"net/netip"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/statedb/reconciler"
	"go.yaml.in/yaml/v3"
)

// TestEntry_Size limits the size of a row, because there is one for each pod of the cluster.
func TestEntry_Size(t *testing.T) {
	t.Parallel()
	if size := unsafe.Sizeof(Entry{}); size > 64 {
		t.Errorf("a row has %d bytes, which is more than the size class of 64", size)
	}
}

// TestEntry_StatusSurvives checks that the status in JSON and YAML is the status of the reconciler, and survives both.
func TestEntry_StatusSurvives(t *testing.T) {
	t.Parallel()
	for _, status := range []reconciler.Status{{}, reconciler.StatusPending(), reconciler.StatusDone(), reconciler.StatusError(errors.New("full"))} {
		status.UpdatedAt = status.UpdatedAt.Round(0) // the monotonic clock reading is never shown
		e := NewEntry(Claim{netip.MustParsePrefix("10.0.0.7/32"), 300, "a", SourceRemote}, OwnerCiliumEndpoints).WithStatus(status)
		check := func(what string, have *Entry) {
			t.Helper()
			s := have.GetStatus()
			if !have.Equal(e) || s.Kind != status.Kind || s.ID != status.ID || s.GetError() != status.GetError() || !s.UpdatedAt.Equal(status.UpdatedAt) {
				t.Errorf("%s: have %+v with %+v, want %+v with %+v", what, have, s, e, status)
			}
		}
		check("itself", e)
		text, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		want, err := json.Marshal(struct {
			Prefix   netip.Prefix      `json:"prefix"`
			Identity uint32            `json:"identity"`
			Node     string            `json:"node,omitempty"`
			Source   Source            `json:"source"`
			Owner    string            `json:"owner"`
			Status   reconciler.Status `json:"status"`
		}{e.Prefix(), e.Identity, e.Node(), e.Source, e.Owner(), status})
		if err != nil || string(text) != string(want) {
			t.Errorf("JSON is %s, want %s (%v)", text, want, err)
		}
		back := new(Entry)
		if err := json.Unmarshal(text, back); err != nil {
			t.Fatal(err)
		}
		check("JSON", back)
		if text, err = yaml.Marshal(e); err != nil {
			t.Fatal(err)
		}
		back = new(Entry)
		if err := yaml.Unmarshal(text, back); err != nil {
			t.Fatal(err)
		}
		check("YAML", back)
	}
	if at := new(Entry).GetStatus().UpdatedAt; at != (time.Time{}) {
		t.Errorf("a row without a status was updated at %s", at)
	}
}
