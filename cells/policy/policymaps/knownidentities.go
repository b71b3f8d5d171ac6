package policymaps

import (
	"fmt"
	"maps"
	"math/bits"
	"slices"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/identity"
)

// knownIdentities writes the map known_identities: the identities of the cluster that every policy in use knows. It is not safe for concurrent use; the
// verify job uses it with [controller].mu held.
//
// Programs evaluate a peer by such an identity although neither ipcache nor an endpoint has it. So an identity is added after all entries about it are
// written, and removed before the first of them is removed.
type knownIdentities struct {
	kernel  identityMap
	written []uint64 // the map, by its keys
	wanted  []uint64
	differ  map[uint32]bool // keys whose wanted and written words may differ
}

func newKnownIdentities(kernel identityMap) *knownIdentities {
	return &knownIdentities{kernel: kernel, wanted: make([]uint64, bpf.IdentityWords), differ: map[uint32]bool{}}
}

// restore reads the map of the previous run. The policies of that run are enforced until they are replaced.
func (k *knownIdentities) restore() (err error) {
	if k.written, err = k.kernel.Dump(); err != nil {
		return err
	}
	copy(k.wanted, k.written)
	return nil
}

// add adds an identity to the desired content of the map, and remove removes one.
func (k *knownIdentities) add(id uint32) {
	if word, bit, ok := place64(id); ok {
		k.wanted[word] |= bit
		k.differ[word] = true
	}
}

func (k *knownIdentities) remove(id uint32) {
	if word, bit, ok := place64(id); ok {
		k.wanted[word] &^= bit
		k.differ[word] = true
	}
}

// has reports whether the map has an identity.
func (k *knownIdentities) has(id uint32) bool {
	word, bit, ok := place64(id)
	return ok && k.written[word]&bit != 0
}

// retain removes all identities except the given ones.
func (k *knownIdentities) retain(ids map[uint32]bool) {
	for _, id := range identitiesIn(k.wanted) {
		if !ids[id] {
			k.remove(id)
		}
	}
}

// withdraw removes the identities from the map that are not desired.
func (k *knownIdentities) withdraw() error {
	for _, word := range slices.Sorted(maps.Keys(k.differ)) {
		if err := k.put(word, k.written[word]&k.wanted[word]); err != nil {
			return err
		}
	}
	return nil
}

// announce writes the desired identities to the map.
func (k *knownIdentities) announce() error {
	for _, word := range slices.Sorted(maps.Keys(k.differ)) {
		if err := k.put(word, k.wanted[word]); err != nil {
			return err
		}
	}
	k.differ = map[uint32]bool{} // iterating over a map takes time by its largest size
	return nil
}

func (k *knownIdentities) put(word uint32, bits uint64) error {
	if k.written[word] == bits {
		return nil
	}
	if err := k.kernel.Put(word, bits); err != nil {
		return fmt.Errorf("write identities from %d on to the map known_identities: %w", word*64, err)
	}
	k.written[word] = bits
	return nil
}

// place64 returns the word and the bit of an identity. Reserved identities and identities that are local to a node have none.
func place64(id uint32) (word uint32, bit uint64, ok bool) {
	word, bit = bpf.IdentityBit(id)
	return word, bit, id >= identity.ClusterMin && id <= identity.ClusterMax
}

// identitiesIn returns the identities in words of the map, in ascending order.
func identitiesIn(words []uint64) (ids []uint32) {
	for word, left := range words {
		for ; left != 0; left &= left - 1 {
			ids = append(ids, uint32(word*64+bits.TrailingZeros64(left)))
		}
	}
	return ids
}
