package maps

import (
	"net/netip"
	"testing"

	"github.com/waggle-net/waggle/bpf"
)

// TestPrivilegedOpen_IpcacheOfTheReleaseBefore goes from the release whose ipcache has addresses of nodes to this one and back. Programs of either find every
// identity, and those of the release before find the addresses of nodes that are written here.
func TestPrivilegedOpen_IpcacheOfTheReleaseBefore(t *testing.T) {
	t.Parallel()
	type entry = [8]byte
	former := func(identity uint32, peer string) entry {
		return entry(bpf.FormerIpcacheEntry(identity, netip.MustParseAddr(peer)))
	}
	inMapDir(t, func(dir string) {
		all, err := bpf.MapSpecs()
		if err != nil {
			t.Error(err)
			return
		}
		now := layout{all[bpf.MapIpcache].Copy(), bpf.LayoutVersion(bpf.MapIpcache), bpf.FormerLayout(bpf.MapIpcache)}
		before := layout{now.Former.Spec.Copy(), now.Former.Version, nil}
		now.Name, before.Name = "numbers", "numbers"
		addr := func(text string) bpf.AddrKey { return bpf.NewAddrKey(netip.MustParseAddr(text)) }
		put := func(r run, key bpf.AddrKey, v any) {
			t.Helper()
			if err := r.s.Put("numbers", key, v); err != nil {
				t.Error(err)
			}
		}
		r := startRun(t, dir, before)
		put(r, addr("10.2.0.7"), former(300, "192.0.2.2"))
		put(r, addr("192.0.2.2"), former(6, "192.0.2.2"))
		put(r, addr("192.0.2.3"), former(6, "192.0.2.3"))
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
			if err := r.s.PutFormer("numbers", addr(text), bpf.IpcacheEntry{Identity: v.identity, Node: 5}, former(v.identity, v.peer)); err != nil {
				t.Error(err)
			}
		}
		if err := r.s.Delete("numbers", addr("192.0.2.3")); err != nil {
			t.Error(err)
		}
		wantKeys(t, dir, "numbers_v2", map[bpf.AddrKey]bpf.IpcacheEntry{addr("10.2.0.7"): {Identity: 301, Node: 5}, addr("192.0.2.2"): {Identity: 7, Node: 5}})
		r.end()

		r = startRun(t, dir, before)
		wantKeys(t, dir, "numbers_v1", map[bpf.AddrKey]entry{addr("10.2.0.7"): former(301, "0.0.0.0"), addr("192.0.2.2"): former(7, "192.0.2.22")})
		wantPins(t, dir, "numbers_v1")
		r.end()
	})
}
