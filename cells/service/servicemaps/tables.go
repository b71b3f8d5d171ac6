package servicemaps

import (
	"encoding/binary"
	"hash/maphash"

	"github.com/waggle-net/waggle/pkg/datapath/servicemap"
	"github.com/waggle-net/waggle/pkg/maglev"
)

// tables allocates Maglev tables in their array. Frontends with the same backends share one table.
type tables struct {
	size  uint32 // slots of a new table
	users []int32
	first uint32            // no unit below is free
	byKey map[string]*table // tables of this size with known contents
	byAt  map[uint32]*table // tables of a previous run, by their first slot
	seed  maglev.Seed
	hash  maphash.Seed // for sums of contents
	used  uint32       // number of units in use
}

// table is one Maglev table.
type table struct {
	at, size uint32
	key      string // the ids of its backends, see [keyOf]; empty if unknown
	sum      uint64 // hash of the contents
	empty    bool   // the array was created again: no program reads the table yet
	users    int    // number of entries, including quarantined ones
	err      error  // error of its write
}

// newTables returns the allocation of an array, divided into units of the size of a table.
func newTables(size, elements uint32, seed maglev.Seed) *tables {
	return &tables{size: size, users: make([]int32, elements/size), byKey: map[string]*table{}, byAt: map[uint32]*table{}, seed: seed, hash: maphash.MakeSeed()}
}

// keyOf returns a key for a list of ids.
func keyOf(ids []uint32) string {
	key := make([]byte, 0, 4*len(ids))
	for _, id := range ids {
		key = binary.NativeEndian.AppendUint32(key, id)
	}
	return string(key)
}

// restore restores a table that an entry of a previous run names.
func (t *tables) restore(at, size uint32, elements []uint32) *table {
	found := t.byAt[at]
	if found == nil || found.size != size {
		contents := servicemap.Slice(elements, at, size)
		found = &table{at: at, size: size, sum: t.sum(contents), empty: !anyIn(contents)}
		t.byAt[at] = found
		t.use(found, 1)
	}
	found.users++
	return found
}

// use adds by to the users of the units of a table.
func (t *tables) use(one *table, by int32) {
	if one.size == 0 {
		return
	}
	for unit := uint64(one.at) / uint64(t.size); unit <= (uint64(one.at)+uint64(one.size)-1)/uint64(t.size) && unit < uint64(len(t.users)); unit++ {
		before := t.users[unit]
		switch t.users[unit] += by; {
		case t.users[unit] == 0:
			t.first = min(t.first, uint32(unit))
			t.used--
		case before == 0:
			t.used++
		}
	}
}

// get allocates a table.
// hasFree reports whether there is space for another table.
func (t *tables) hasFree() bool {
	for ; int(t.first) < len(t.users); t.first++ {
		if t.users[t.first] == 0 {
			return true
		}
	}
	return false
}

func (t *tables) get(key string, contents []uint32) (*table, bool) {
	if !t.hasFree() {
		return nil, false
	}
	one := &table{at: t.first * t.size, size: t.size, key: key, sum: t.sum(contents)}
	t.use(one, 1)
	t.byKey[key] = one
	return one, true
}

// fits reports whether a table has the present size and a valid position.
func (t *tables) fits(one *table) bool {
	return one.size == t.size && one.at%t.size == 0 && int(one.at/t.size) < len(t.users)
}

// know records the contents of a restored table.
func (t *tables) know(one *table, key string) {
	one.key, t.byKey[key] = key, one
	delete(t.byAt, one.at)
}

// forget prevents new users of a table, for instance because it was damaged.
func (t *tables) forget(one *table) {
	if t.byKey[one.key] == one {
		delete(t.byKey, one.key)
	}
}

// drop removes a user from a table, and frees the table if it has no other user.
func (t *tables) drop(one *table) {
	if one == nil {
		return
	}
	if one.users--; one.users > 0 {
		return
	}
	t.use(one, -1)
	t.forget(one)
	if t.byAt[one.at] == one {
		delete(t.byAt, one.at)
	}
}

// count returns the number of elements of the array that are in use.
func (t *tables) count() uint32 { return t.used * t.size }

func (t *tables) sum(contents []uint32) uint64 {
	var h maphash.Hash
	h.SetSeed(t.hash)
	_, _ = h.WriteString(keyOf(contents))
	return h.Sum64()
}

func anyIn(contents []uint32) bool {
	for _, id := range contents {
		if id != 0 {
			return true
		}
	}
	return false
}
