package tests

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/waggle-net/waggle/bpf"
)

func TestPreviousIpcache_IdentityInBothLayouts(t *testing.T) {
	t.Parallel()
	peer := netip.MustParseAddr("192.0.2.2")
	for _, name := range []string{bpf.MapIpcache, bpf.MapIpcachePrefixes} {
		layout, key := bpf.PreviousLayoutOf(name), []byte{1, 2}
		k, v, exists := layout.Forward(key, bpf.PreviousIpcacheEntry(300, peer))
		if !exists || !bytes.Equal(k, key) || !bytes.Equal(v, encoded(t, bpf.IpcacheEntry{Identity: 300})) {
			t.Errorf("%s forward: %v, %x", name, exists, v)
		}
		k, v, exists = layout.Back(key, encoded(t, bpf.IpcacheEntry{Identity: 300, Node: 7}))
		if !exists || !bytes.Equal(k, key) || !bytes.Equal(v, bpf.PreviousIpcacheEntry(300, netip.Addr{})) {
			t.Errorf("%s back: %v, %x", name, exists, v)
		}
		if _, _, exists := layout.Forward(key, []byte{1}); exists || layout.Spec.ValueSize != uint32(len(v)) || !layout.Partial {
			t.Errorf("%s: a value of one byte was converted, or the layout is %+v", name, layout)
		}
	}
}
