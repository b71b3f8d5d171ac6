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
	if size := unsafe.Sizeof(Entry{}); size > 48 {
		t.Errorf("a row has %d bytes, which is more than the size class of 48", size)
	}
}

// TestEntry_SharesValues checks that rows of one node share their values again after a failed write, and that a new row shares the key of the row it replaces.
func TestEntry_SharesValues(t *testing.T) {
	t.Parallel()
	claim := Claim{netip.MustParsePrefix("10.0.0.7/32"), 300, "a", SourceRemote}
	first, failed := NewEntry(claim, OwnerCiliumEndpoints), NewEntry(claim, OwnerCiliumEndpoints)
	failed.WithStatus(reconciler.StatusError(errors.New("full")))
	if failed.shared == first.shared || !failed.Equal(first) || !first.Equal(failed) || failed.Node() != "a" || failed.Owner() != OwnerCiliumEndpoints {
		t.Errorf("have %+v after a failed write, want %+v with the error", failed, first)
	}
	if s := first.GetStatus(); s.Error != nil {
		t.Errorf("the status of another row is %+v", s)
	}
	failed.WithStatus(reconciler.StatusDone())
	if s := failed.GetStatus(); failed.shared != first.shared || s.Error != nil {
		t.Errorf("have %+v with %+v after a write, want %+v", failed, s, first)
	}
	failed.Replaces(first)
	if unsafe.StringData(string(failed.key)) != unsafe.StringData(string(first.key)) {
		t.Error("a new row has a key of its own")
	}
	other := NewEntry(Claim{Prefix: netip.MustParsePrefix("10.0.0.8/32")}, "")
	other.Replaces(first)
	if want := netip.MustParsePrefix("10.0.0.8/32"); other.Prefix() != want || other.Equal(first) {
		t.Errorf("have %s, want %s", other.Prefix(), want)
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
