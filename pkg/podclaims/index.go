package podclaims

import (
	"hash/maphash"
	"net/netip"

	"github.com/waggle-net/waggle/pkg/tables/cilium"
)

// Index finds one object for each of some addresses. It stores no keys: it reads an address from its object. So an entry takes 16 bytes; an entry of a Go map
// takes three times as many. The zero value is an empty index. An index is not safe for concurrent use.
type Index struct{ hashed }

// Get returns the object of an address; nil when there is none.
func (x *Index) Get(addr netip.Addr) *cilium.Endpoint {
	if x.used == 0 {
		return nil
	}
	at, found := x.find(x.hash(addr), ofAddr(addr))
	if !found {
		return nil
	}
	return x.slots[at].ep
}

// Set makes ep the object of an address. ep must have the address.
func (x *Index) Set(addr netip.Addr, ep *cilium.Endpoint) {
	x.put(slot{ep, x.hash(addr), uint32(ep.IndexOf(addr))}, ofAddr(addr))
}

// Mark sets or clears the mark of an address. Without an object it does nothing. [Index.Set] and [Index.Delete] clear the mark.
func (x *Index) Mark(addr netip.Addr, marked bool) {
	at, found := x.find(x.hash(addr), ofAddr(addr))
	if !found {
		return
	}
	if x.slots[at].addr &^= marks; marked {
		x.slots[at].addr |= marks
	}
}

// Marked returns the object of an address if it is marked, otherwise nil.
func (x *Index) Marked(addr netip.Addr) *cilium.Endpoint {
	at, found := x.find(x.hash(addr), ofAddr(addr))
	if !found || x.slots[at].addr&marks == 0 {
		return nil
	}
	return x.slots[at].ep
}

// Delete removes an address.
func (x *Index) Delete(addr netip.Addr) { x.remove(x.hash(addr), ofAddr(addr)) }

func (x *Index) hash(addr netip.Addr) uint32 {
	bytes := addr.As16()
	return uint32(maphash.Bytes(x.begin(), bytes[:]))
}

func ofAddr(addr netip.Addr) func(slot) bool {
	return func(s slot) bool { return s.ep.Addr(int(s.addr&^marks)) == addr }
}

// names finds objects by name.
type names struct{ hashed }

// add adds an object and returns the object of the same name that it replaces, or nil.
func (n *names) add(ep *cilium.Endpoint) (old *cilium.Endpoint) {
	return n.put(slot{ep: ep, hash: n.hash(ep)}, sameName(ep))
}

// get returns the object with the name of ep, or nil.
func (n *names) get(ep *cilium.Endpoint) *cilium.Endpoint {
	at, _ := n.find(n.hash(ep), sameName(ep))
	return n.slots[at].ep
}

// take removes the object with the name of ep and returns it.
func (n *names) take(ep *cilium.Endpoint) (old *cilium.Endpoint) {
	return n.remove(n.hash(ep), sameName(ep))
}

func (n *names) hash(ep *cilium.Endpoint) uint32 { return uint32(maphash.String(n.begin(), ep.Key())) }

func sameName(ep *cilium.Endpoint) func(slot) bool {
	return func(s slot) bool { return s.ep.Key() == ep.Key() }
}

// hashed is a hash table with linear probing. Entries are in the order of their hashes, except displaced ones: an entry is in its home slot, hash * number of
// slots / 2^32, or in a later slot without a free slot between.
type hashed struct {
	slots []slot
	used  int
	seed  maphash.Seed
}

// slot is free if ep is nil.
type slot struct {
	ep   *cilium.Endpoint
	hash uint32
	addr uint32 // number of the address in the object, and the mark; 0 in an index of names
}

const marks = 1 << 31

// At most seven eighths of the slots are used, and at least a quarter of more than fewSlots.
const fewSlots = 16

// begin returns the seed. It initializes the table before the first use.
func (h *hashed) begin() maphash.Seed {
	if h.slots == nil {
		h.seed, h.slots = maphash.MakeSeed(), make([]slot, fewSlots)
	}
	return h.seed
}

// home returns the home slot of a hash.
func (h *hashed) home(hash uint32) int { return int(uint64(hash) * uint64(len(h.slots)) >> 32) }

func (h *hashed) next(at int) int {
	if at++; at < len(h.slots) {
		return at
	}
	return 0
}

// find returns the slot of an entry, or the free slot for it.
func (h *hashed) find(hash uint32, same func(slot) bool) (at int, found bool) {
	for at = h.home(hash); h.slots[at].ep != nil; at = h.next(at) {
		if h.slots[at].hash == hash && same(h.slots[at]) {
			return at, true
		}
	}
	return at, false
}

// put adds an entry and returns the object of the entry that it replaces, or nil.
func (h *hashed) put(s slot, same func(slot) bool) (old *cilium.Endpoint) {
	at, found := h.find(s.hash, same)
	if old = h.slots[at].ep; !found {
		h.used++
	}
	if h.slots[at] = s; h.used > len(h.slots)/8*7 {
		h.resize(len(h.slots) + len(h.slots)/8)
	}
	return old
}

// remove deletes an entry and returns its object. It moves later entries as near to their home slots as possible.
func (h *hashed) remove(hash uint32, same func(slot) bool) (old *cilium.Endpoint) {
	free, found := h.find(hash, same)
	if !found {
		return nil
	}
	old = h.slots[free].ep
	for at := h.next(free); h.slots[at].ep != nil; at = h.next(at) {
		home := h.home(h.slots[at].hash)
		if h.distance(home, at) >= h.distance(free, at) {
			h.slots[free], free = h.slots[at], at
		}
	}
	h.slots[free] = slot{}
	if h.used--; len(h.slots) > fewSlots && h.used < len(h.slots)/4 {
		h.resize(max(len(h.slots)/2, fewSlots))
	}
	return old
}

// distance returns the number of steps from one slot to another.
func (h *hashed) distance(from, to int) int {
	if to < from {
		to += len(h.slots)
	}
	return to - from
}

func (h *hashed) resize(size int) {
	old := h.slots
	h.slots = make([]slot, size)
	for _, s := range old {
		if s.ep == nil {
			continue
		}
		at := h.home(s.hash)
		for h.slots[at].ep != nil {
			at = h.next(at)
		}
		h.slots[at] = s
	}
}
