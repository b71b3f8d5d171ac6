package ipcache

import (
	"net/netip"
	"testing"

	"github.com/cilium/statedb/index"
)

// TestKey_EqualsIndexKey checks that [KeyOf] equals the key of the index, so that queries by prefix find the rows.
func TestKey_EqualsIndexKey(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"10.0.0.7/32", "10.0.0.9/24", "0.0.0.0/0", "fd00::7/128", "fd00::7/64", "::/0"} {
		prefix := netip.MustParsePrefix(text)
		if key, want := NewEntry(Claim{Prefix: prefix}, "").Key(), index.NetIPPrefix(prefix); string(key[:]) != string(want) {
			t.Errorf("%s: the key is %x, want %x", text, key, want)
		}
	}
}
