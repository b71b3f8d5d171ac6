package ctgc

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/waggle-net/waggle/bpf"
)

// An entry that a program renews at any step of its deletion stays: the client keeps its new backend.
func TestPrivilegedDeleteAffinity_KeepsRenewedEntry(t *testing.T) {
	t.Parallel()
	maps := realMaps(t)
	k, m := newNatKernel(maps), maps[bpf.MapAffinity]
	key := bpf.AffinityKey{Service: 1, Kind: 4}
	old, renewed := bpf.AffinityEntry{Backend: 1, Used: 5}, bpf.AffinityEntry{Backend: 2, Used: 6}
	renewAt := func(question int) func(bpf.AffinityEntry) bool {
		asked := 0
		return func(e bpf.AffinityEntry) bool {
			if asked++; asked == question {
				if err := m.Put(key, renewed); err != nil {
					t.Error(err)
				}
			}
			return e == old
		}
	}
	for _, c := range []struct {
		name     string
		question int // the call of dead at which the entry is renewed; 0 is never
		deleted  bool
	}{{"never renewed", 0, true}, {"renewed while the look-up is judged", 1, false}, {"renewed while the deleted one is judged", 2, true}} {
		if err := m.Put(key, old); err != nil {
			t.Fatal(err)
		}
		deleted, err := k.DeleteAffinity(key, renewAt(c.question))
		if err != nil || deleted != c.deleted {
			t.Errorf("%s: deleted %t, %v, want %t", c.name, deleted, err, c.deleted)
		}
		var left bpf.AffinityEntry
		switch err := m.Lookup(key, &left); {
		case c.question == 0 && !errors.Is(err, ebpf.ErrKeyNotExist):
			t.Errorf("%s: %+v is left, %v", c.name, left, err)
		case c.question > 0 && (err != nil || left != renewed):
			t.Errorf("%s: %+v is left, %v, want %+v", c.name, left, err, renewed)
		}
	}
	if err := m.Put(key, renewed); err != nil {
		t.Fatal(err)
	}
	if deleted, err := k.DeleteAffinity(key, renewAt(0)); err != nil || deleted {
		t.Errorf("an entry that is alive: deleted %t, %v", deleted, err)
	}
}
