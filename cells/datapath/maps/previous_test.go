package maps

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/waggle-net/waggle/bpf"
)

// ipcacheLayouts returns the layouts of ipcache in the previous and in this release, with another map name.
func ipcacheLayouts(t *testing.T) (before, now layout) {
	t.Helper()
	all, err := bpf.MapSpecs()
	if err != nil {
		t.Error(err)
	}
	now = layout{all[bpf.MapIpcache].Copy(), bpf.LayoutVersion(bpf.MapIpcache), bpf.PreviousLayoutOf(bpf.MapIpcache)}
	before = layout{now.Former.Spec.Copy(), now.Former.Version, nil}
	now.Name, before.Name = "numbers", "numbers"
	return before, now
}

// TestPrivilegedOpen_CrashBeforeMapIsFilled ends runs at each step of an upgrade. While the owner has not filled the map, no run treats it as
// filled; afterwards every run does. The previous release finds its own map and no pin of this release.
func TestPrivilegedOpen_CrashBeforeMapIsFilled(t *testing.T) {
	t.Parallel()
	inMapDir(t, func(dir string) {
		before, now := ipcacheLayouts(t)
		key := bpf.NewAddrKey(netip.MustParseAddr("10.2.0.7"))
		peer := netip.MustParseAddr("192.0.2.2")
		r := startRun(t, dir, before)
		if err := r.s.Put("numbers", key, [8]byte(bpf.PreviousIpcacheEntry(300, peer))); err != nil {
			t.Error(err)
		}
		r.end()
		unfilled := func(reused bool) run {
			t.Helper()
			r := startRun(t, dir, now)
			if row := r.s.open["numbers"].row; row.Filled || row.Reused != reused || row.Error != "" {
				t.Errorf("want a map without nodes, reused %v: %+v", reused, row)
			}
			wantPins(t, dir, "filling_numbers_v2", "numbers_v1", "numbers_v2")
			return r
		}
		unfilled(false).end()
		unfilled(true).end()
		if err := os.Remove(filepath.Join(dir, "numbers_v2")); err != nil { // a crash between the mark and the pin
			t.Error(err)
		}
		r = unfilled(false)
		if err := r.s.PutPrevious("numbers", key, bpf.IpcacheEntry{Identity: 300, Node: 5}, [8]byte(bpf.PreviousIpcacheEntry(300, peer))); err != nil {
			t.Error(err)
		}
		r.end()
		r = unfilled(true) // a crash before hooks are given to programs
		if err := r.s.setFilled(); err != nil {
			t.Error(err)
		}
		r.end()
		for range 2 {
			r = startRun(t, dir, now)
			if row := r.s.open["numbers"].row; !row.Filled || !row.Reused {
				t.Errorf("the map is filled: %+v", row)
			}
			wantKeys(t, dir, "numbers_v2", map[bpf.AddrKey]bpf.IpcacheEntry{key: {Identity: 300, Node: 5}})
			wantPins(t, dir, "numbers_v1", "numbers_v2")
			r.end()
		}

		if err := os.Remove(filepath.Join(dir, "numbers_v2")); err != nil {
			t.Error(err)
		}
		unfilled(false).end() // a downgrade before it is filled
		r = startRun(t, dir, before)
		wantPins(t, dir, "numbers_v1")
		wantKeys(t, dir, "numbers_v1", map[bpf.AddrKey][8]byte{key: [8]byte(bpf.PreviousIpcacheEntry(300, peer))})
		r.end()
	})
}

// TestPrivilegedOpen_IpcacheOfPreviousRelease upgrades from the release whose ipcache has addresses of nodes to this release, and downgrades again. Programs
// of both releases find every identity, and programs of the previous release find the node addresses that this release writes.
func TestPrivilegedOpen_IpcacheOfPreviousRelease(t *testing.T) {
	t.Parallel()
	type entry = [8]byte
	previous := func(identity uint32, peer string) entry {
		return entry(bpf.PreviousIpcacheEntry(identity, netip.MustParseAddr(peer)))
	}
	inMapDir(t, func(dir string) {
		before, now := ipcacheLayouts(t)
		addr := func(text string) bpf.AddrKey { return bpf.NewAddrKey(netip.MustParseAddr(text)) }
		put := func(r run, key bpf.AddrKey, v any) {
			t.Helper()
			if err := r.s.Put("numbers", key, v); err != nil {
				t.Error(err)
			}
		}
		r := startRun(t, dir, before)
		put(r, addr("10.2.0.7"), previous(300, "192.0.2.2"))
		put(r, addr("192.0.2.2"), previous(6, "192.0.2.2"))
		put(r, addr("192.0.2.3"), previous(6, "192.0.2.3"))
		r.end()

		r = startRun(t, dir, now)
		wantKeys(t, dir, "numbers_v2", map[bpf.AddrKey]bpf.IpcacheEntry{addr("10.2.0.7"): {Identity: 300}, addr("192.0.2.2"): {Identity: 6}, addr("192.0.2.3"): {Identity: 6}})
		if row := r.s.open["numbers"].row; row.Filled {
			t.Error("hooks would read entries whose nodes are not written")
		}
		for text, v := range map[string]struct {
			identity uint32
			peer     string
		}{"10.2.0.7": {301, "0.0.0.0"}, "192.0.2.2": {7, "192.0.2.22"}} {
			if err := r.s.PutPrevious("numbers", addr(text), bpf.IpcacheEntry{Identity: v.identity, Node: 5}, previous(v.identity, v.peer)); err != nil {
				t.Error(err)
			}
		}
		if err := r.s.Delete("numbers", addr("192.0.2.3")); err != nil {
			t.Error(err)
		}
		wantKeys(t, dir, "numbers_v2", map[bpf.AddrKey]bpf.IpcacheEntry{addr("10.2.0.7"): {Identity: 301, Node: 5}, addr("192.0.2.2"): {Identity: 7, Node: 5}})
		r.end()

		r = startRun(t, dir, before)
		wantKeys(t, dir, "numbers_v1", map[bpf.AddrKey]entry{addr("10.2.0.7"): previous(301, "0.0.0.0"), addr("192.0.2.2"): previous(7, "192.0.2.22")})
		wantPins(t, dir, "numbers_v1")
		r.end()
	})
}

// TestPrivilegedOpen_CIDRsOfPreviousRelease: values get the length of their key. The map of the previous release has fewer entries; an entry that does not fit
// there causes no error.
func TestPrivilegedOpen_CIDRsOfPreviousRelease(t *testing.T) {
	t.Parallel()
	inMapDir(t, func(dir string) {
		all, err := bpf.MapSpecs()
		if err != nil {
			t.Error(err)
		}
		now := layout{all[bpf.MapCIDRs].Copy(), bpf.LayoutVersion(bpf.MapCIDRs), bpf.PreviousLayoutOf(bpf.MapCIDRs)}
		now.Name = "numbers"
		before := layout{now.Former.Spec.Copy(), now.Former.Version, nil}
		before.Name, before.MaxEntries = "numbers", 2
		v4, v6, more := netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/16"), netip.MustParsePrefix("192.0.2.0/24")
		r := startRun(t, dir, before)
		for i, prefix := range []netip.Prefix{v4, v6} {
			if err := r.s.Put("numbers", bpf.NewLpmKey(prefix), uint32(i+1)); err != nil {
				t.Error(err)
			}
		}
		r.end()
		r = startRun(t, dir, now)
		if err := r.s.Put("numbers", bpf.NewLpmKey(more), bpf.NewCIDR(more, 3)); err != nil {
			t.Error(err)
		}
		r.end()
		wantKeys(t, dir, "numbers_v2", map[bpf.LpmKey]bpf.CIDR{bpf.NewLpmKey(v4): bpf.NewCIDR(v4, 1), bpf.NewLpmKey(v6): bpf.NewCIDR(v6, 2),
			bpf.NewLpmKey(more): bpf.NewCIDR(more, 3)})
		wantKeys(t, dir, "numbers_v1", map[bpf.LpmKey]uint32{bpf.NewLpmKey(v4): 1, bpf.NewLpmKey(v6): 2})
	})
}
