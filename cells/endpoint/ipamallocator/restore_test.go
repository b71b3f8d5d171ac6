package ipamallocator

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/waggle-net/waggle/pkg/ipam"
	"github.com/waggle-net/waggle/pkg/tables/ipamaddresses"
)

// The agent was killed after a plugin had requested addresses: no other request gets them, and the plugin's claim succeeds.
func TestRestart_AllocationWaitsForItsPlugin(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	before := startIPAM(t, dir, 30*time.Second)
	before.RestoreDone()
	mustApply(t, before, "10.0.0.0/29", "fd00::/125")
	got, err := before.Next(t.Context(), ipam.Request{Owner: "default/new", Expire: true})
	if err != nil {
		t.Fatal(err)
	}

	after := startIPAM(t, dir, 30*time.Second)
	after.RestoreDone()
	mustApply(t, after, "10.0.0.0/29", "fd00::/125")
	for {
		other, err := after.Next(t.Context(), ipam.Request{IPv4: true, Owner: "default/other"})
		if errors.Is(err, ipam.ErrExhausted) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if other.IPv4.Addr == got.IPv4.Addr {
			t.Fatalf("%v was given to two", got.IPv4.Addr)
		}
	}
	for _, claim := range []*ipam.Allocation{got.IPv4, got.IPv6} {
		mustClaim(t, after, claim, "c1:eth0")
	}
}

// The agent was killed between the removal of an endpoint's file and the release of its address: the previous allocation is restored.
func TestRestart_InterruptedRelease_AddressIsNotFree(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	before := startIPAM(t, dir, 30*time.Second)
	before.RestoreDone()
	mustApply(t, before, "10.0.0.0/29", "")
	got := mustNext(t, before, true)
	mustClaim(t, before, got, "c1:eth0")

	after := startIPAM(t, dir, 30*time.Second) // no endpoint restores the claim
	after.RestoreDone()
	if state := after.stateOf(got.Addr); state != ipamaddresses.Allocated {
		t.Fatalf("%v is %q", got.Addr, state)
	}
	if _, err := after.expire(time.Now().Add(ipam.ExpireAfter)); err != nil {
		t.Fatal(err)
	}
	if state := after.stateOf(got.Addr); state != ipamaddresses.Quarantined {
		t.Errorf("%v is %q, want quarantined: no endpoint has claimed it", got.Addr, state)
	}
}

func TestRestart_EndpointOverridesLedger(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	before := startIPAM(t, dir, 30*time.Second)
	before.RestoreDone()
	mustApply(t, before, "10.0.0.0/29", "")
	got := mustNext(t, before, true)

	after := startIPAM(t, dir, 30*time.Second)
	if err := after.Restore([]ipam.Claim{{Addr: got.Addr, Attachment: "c1:eth0"}}); err != nil {
		t.Fatal(err)
	}
	after.RestoreDone()
	if state := after.stateOf(got.Addr); state != ipamaddresses.Claimed {
		t.Errorf("%v is %q", got.Addr, state)
	}
}

// The name of a damaged file still gives the address to quarantine.
func TestRestart_DamagedLedger(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	files := filepath.Join(dir, "ipam", "addresses")
	if err := os.MkdirAll(files, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"10.0.0.3.json": "{", "fd00::7.json": "", "10.0.0.4.json": "null",
		"10.0.0.04.json": "x", "::ffff:10.0.0.5.json": "x", "fe80::1%eth0.json": "x", "README": "x"} {
		if err := os.WriteFile(filepath.Join(files, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a := startIPAM(t, dir, 30*time.Second)
	a.RestoreDone()
	quarantined := map[string]bool{}
	for row := range a.table.All(a.db.ReadTxn()) {
		quarantined[row.Addr.String()] = row.State == ipamaddresses.Quarantined && row.Pool != "" && row.Expiry.After(time.Now())
	}
	if len(quarantined) != 3 || !quarantined["10.0.0.3"] || !quarantined["10.0.0.4"] || !quarantined["fd00::7"] {
		t.Errorf("in quarantine: %v", quarantined)
	}
	moved, err := os.ReadDir(filepath.Join(files, "bad"))
	if err != nil || len(moved) != 4 {
		t.Errorf("set aside: %v, %v", moved, err)
	}
}

// If the ledger cannot be written, no address is allocated, and none is lost: a pod can still be deleted.
func TestNext_LedgerWriteFails_LeaksNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := startIPAM(t, dir, 30*time.Second)
	a.RestoreDone()
	mustApply(t, a, "10.0.0.0/29", "fd00::/125")
	claimed := mustNext(t, a, true)
	mustClaim(t, a, claimed, "c1:eth0")
	files := filepath.Join(dir, "ipam", "addresses")
	if err := errors.Join(os.RemoveAll(files), os.WriteFile(files, nil, 0o600)); err != nil { // the directory cannot be created now
		t.Fatal(err)
	}
	used := [2]uint64{a.ipv4.free.Used(), a.ipv6.free.Used()}
	for range 20 {
		if _, err := a.Next(t.Context(), ipam.Request{}); err == nil {
			t.Fatal("an address was given that no restart would know")
		}
	}
	if now := [2]uint64{a.ipv4.free.Used(), a.ipv6.free.Used()}; now != used {
		t.Errorf("used addresses: %v before, %v after", used, now)
	}
	if _, err := a.Release(claimed.Addr, "", "c1:eth0"); err != nil {
		t.Errorf("release: %v", err)
	}
	if err := os.Remove(files); err != nil {
		t.Fatal(err)
	}
	mustNext(t, a, true) // the directory is created again
}
