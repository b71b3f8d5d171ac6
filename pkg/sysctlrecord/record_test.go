package sysctlrecord

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fakeKernel is a [Kernel] in which ip_forward changes other settings as in Linux. Writes fail when its budget is spent.
type fakeKernel struct {
	values map[string]string
	budget int
}

func (k *fakeKernel) Read(name string) (string, error) {
	v, found := k.values[name]
	if !found {
		return "", fs.ErrNotExist
	}
	return v, nil
}

func (k *fakeKernel) Write(name, value string) error {
	if k.budget--; k.budget < 0 {
		return errors.New("killed")
	}
	if name == ipForward {
		for n := range k.values {
			if strings.HasSuffix(n, "/forwarding") {
				k.values[n] = value
			}
		}
		k.values["net/ipv4/conf/all/accept_redirects"] = map[string]string{"0": "1", "1": "0"}[value]
	}
	k.values[name] = value
	return nil
}

func (k *fakeKernel) List(string) ([]string, error) {
	return []string{"all", "default", "eth0", "eth1", "waggle_host"}, nil
}

func machine() *fakeKernel {
	return &fakeKernel{budget: 1000, values: map[string]string{ipForward: "0", "net/ipv4/conf/all/forwarding": "0",
		"net/ipv4/conf/default/forwarding": "0", "net/ipv4/conf/eth0/forwarding": "1", "net/ipv4/conf/eth1/forwarding": "0",
		"net/ipv4/conf/all/accept_redirects": "0", "net/ipv4/conf/all/rp_filter": "2"}}
}

// set records and changes a setting as the agent does.
func set(t *testing.T, r *Record, k *fakeKernel, name, value string) {
	t.Helper()
	if err := errors.Join(r.Keep(k, name, value), k.Write(name, value)); err != nil {
		t.Fatal(err)
	}
}

func TestRestore_RestoresDependentSettings(t *testing.T) {
	t.Parallel()
	dir, k := t.TempDir(), machine()
	before := maps.Clone(k.values)
	r := New(dir)
	set(t, r, k, ipForward, "1")
	set(t, New(dir), k, "net/ipv4/conf/all/rp_filter", "0") // by the next agent
	pending, err := New(dir).Pending(k)
	if err != nil || len(pending) != 5 { // ip_forward, three of devices, rp_filter; accept_redirects was 0 and did not change
		t.Errorf("pending: %v, %v", pending, err)
	}
	for range 2 {
		if err := New(dir).Restore(k); err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(k.values, before) {
			t.Errorf("is  %v\nwas %v", k.values, before)
		}
	}
}

func TestRestore_AfterInterruption_Completes(t *testing.T) {
	t.Parallel()
	for budget := range 5 {
		dir, k := t.TempDir(), machine()
		before := maps.Clone(k.values)
		set(t, New(dir), k, ipForward, "1")
		set(t, New(dir), k, "net/ipv4/conf/all/rp_filter", "0")
		k.budget = budget
		interrupted := New(dir).Restore(k)
		if budget < 3 && interrupted == nil {
			t.Errorf("with %d writes nothing was interrupted", budget)
		}
		k.budget = 1000
		if err := New(dir).Restore(k); err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(k.values, before) {
			t.Errorf("after %d writes: is  %v\nwas %v", budget, k.values, before)
		}
	}
}

func TestRestore_KeepsForeignValues(t *testing.T) {
	t.Parallel()
	dir, k := t.TempDir(), machine()
	set(t, New(dir), k, "net/ipv4/conf/all/rp_filter", "0")
	k.values["net/ipv4/conf/all/rp_filter"] = "1"
	pending, err := New(dir).Pending(k)
	if err := errors.Join(err, New(dir).Restore(k)); err != nil || len(pending) != 0 || k.values["net/ipv4/conf/all/rp_filter"] != "1" {
		t.Errorf("pending %v, %v, now %v", pending, err, k.values)
	}
}

// The record keeps the first value, even if the agent sets its value again after other changes, or sets another value.
func TestKeep_FirstValueStays(t *testing.T) {
	t.Parallel()
	dir, k := t.TempDir(), machine()
	r := New(dir)
	set(t, r, k, "net/ipv4/conf/all/rp_filter", "0")
	k.values["net/ipv4/conf/all/rp_filter"] = "1"
	set(t, r, k, "net/ipv4/conf/all/rp_filter", "0")
	set(t, New(dir), k, "net/ipv4/conf/all/rp_filter", "3")
	pending, err := New(dir).Pending(k)
	if want := (Pending{"net/ipv4/conf/all/rp_filter", "3", "2"}); err != nil || len(pending) != 1 || pending[0] != want {
		t.Errorf("pending %v, %v, want %v", pending, err, want)
	}
}

func TestKeep_IgnoresOwnDevices(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"net/ipv4/conf/waggle_host/rp_filter", "net/ipv4/conf/lxc0123456789ab/rp_filter", "net/ipv6/neigh/waggle_net/x"} {
		if err := New(dir).Keep(machine(), name, "0"); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(Dir(dir)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a record was written: %v", err)
	}
	if ofOurDevice("net/ipv4/conf/waggle_other/rp_filter") || ofOurDevice("net/ipv4/conf/lxc0/rp_filter") {
		t.Error("devices of others are taken for ours")
	}
}

func TestKeep_BadAndOldRecords(t *testing.T) {
	t.Parallel()
	dir, k := t.TempDir(), machine()
	set(t, New(dir), k, "net/ipv4/conf/all/rp_filter", "0")
	path := filepath.Join(Dir(dir), documentName)
	if err := os.WriteFile(path, []byte("not a record"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(dir).Pending(k); !errors.Is(err, errUnusable) || !strings.Contains(err.Error(), path) {
		t.Errorf("a bad record: %v", err)
	}
	set(t, New(dir), k, "net/ipv4/conf/eth0/rp_filter2", "0") // the setting does not exist; the bad record is quarantined
	set(t, New(dir), k, "net/ipv4/conf/all/rp_filter", "1")
	r := New(dir)
	doc, err := r.read()
	if err != nil || doc == nil || doc.Changes["net/ipv4/conf/all/rp_filter"] != (Change{"0", "1"}) {
		t.Fatalf("after a bad record: %+v, %v", doc, err)
	}
	doc.BootID = "another"
	if err := r.store.Write(documentName, doc); err != nil {
		t.Fatal(err)
	}
	if pending, err := New(dir).Pending(k); err != nil || pending != nil {
		t.Errorf("of another boot: %v, %v", pending, err)
	}
}

// Keep fails if the record cannot be written, because the setting could not be restored.
func TestKeep_FailsWhenItCannotBeWritten(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := New(dir).Keep(machine(), ipForward, "1"); err == nil {
		t.Error("the record was kept below a file")
	}
}
