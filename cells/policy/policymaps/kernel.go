package policymaps

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/pinnedmaps"
	"github.com/waggle-net/waggle/pkg/policy/policycompiler"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
)

// entryMaps presents the maps policy and policy_ranges as one. Its implementation selects the map of an entry.
type entryMaps interface {
	// Put creates or replaces an entry of a policy id.
	Put(id uint32, e policycompiler.Entry) error
	// Delete removes an entry; a missing entry is not an error.
	Delete(id uint32, key policycompiler.Key) error
	// Some reads the next n entries of each map, or the remaining ones. It reports whether it has read the last entry; the next call then starts with the
	// first.
	Some(c *cursor, n int) (found map[entryKey]policycompiler.Entry, end bool, err error)
	// Get reads one entry. Ranges of one policy and peer do not overlap, so a lookup of a range finds this range or none.
	Get(id uint32, key policycompiler.Key) (e policycompiler.Entry, found bool, err error)
	// Capacity returns the capacity of the maps.
	Capacity() (capacity, error)
	// Slots returns the policies that the datapath has for endpoints now, by local id.
	Slots() (map[uint16]slot, error)
}

// cidrMap is the map cidrs.
type cidrMap interface {
	Put(prefix netip.Prefix, number uint32) error
	Delete(prefix netip.Prefix) error // a missing entry is not an error
	Dump() (map[netip.Prefix]uint32, error)
	Capacity() (int, error)
	// Raise makes the datapath evaluate all flows again whose peers may have another CIDR now.
	Raise() error
}

// identityMap is the map known_identities.
type identityMap interface {
	// Put writes the identities from 64 times word on, the lowest first.
	Put(word uint32, bits uint64) error
	// Dump reads all words.
	Dump() ([]uint64, error)
}

// classMap is the map identity_classes.
type classMap interface {
	// Put writes the classes of an identity of the cluster (256 to 65535); the zero value removes them.
	Put(identity uint32, classes policycompiler.Classes) error
	// Dump reads the classes of all identities that have some.
	Dump() (map[uint32]policycompiler.Classes, error)
}

// entryKey is an entry of a policy id.
type entryKey struct {
	ID uint32
	policycompiler.Key
}

// slot is the part of an endpoint's facts that depends on its policies.
type slot struct {
	ifindex  uint32    // of the endpoint's link; distinguishes the endpoint from a later one with the same id
	identity uint32    // identity by which peers know the endpoint
	ids      [4]uint32 // in the order of [decisions]
	shapes   [4]uint32 // shapes of the policies, in the same order
}

// decision returns the policies of a direction in the datapath: the enforced and the audited one, from the index at on.
func (s *slot) decision(at int, isolated bool) endpointpolicies.Decision {
	return endpointpolicies.Decision{Enforced: endpointpolicies.Policy{ID: s.ids[at], Shape: s.shapes[at]},
		Audited: endpointpolicies.Policy{ID: s.ids[at+1], Shape: s.shapes[at+1]}, Isolated: isolated}
}

// capacity is a number of entries of each map.
type capacity struct{ entries, ranges int }

func (r capacity) plus(o capacity) capacity {
	return capacity{r.entries + o.entries, r.ranges + o.ranges}
}
func (r capacity) minus(o capacity) capacity {
	return capacity{r.entries - o.entries, r.ranges - o.ranges}
}
func (r capacity) fits(into capacity) bool {
	return r.entries <= into.entries && r.ranges <= into.ranges
}

// exceeds is the opposite of fits, except that no entries fit into a quota that is exceeded already.
func (r capacity) exceeds(left capacity) bool {
	return r.entries > max(left.entries, 0) || r.ranges > max(left.ranges, 0)
}

// capacityOf counts entries.
func capacityOf(list []policycompiler.Entry) (r capacity) {
	for i := range list {
		if list[i].IsRange() {
			r.ranges++
		} else {
			r.entries++
		}
	}
	return r
}

// cursor is the position of [entryMaps.Some]. The zero value is the first entry.
type cursor struct {
	entries, ranges       ebpf.MapBatchCursor
	entriesEnd, rangesEnd bool
}

// realEntries are the pinned maps.
type realEntries struct{ maps pinnedmaps.Maps }

// realCIDRs is the pinned map.
type realCIDRs struct{ maps pinnedmaps.Maps }

// realIdentities is the pinned map.
type realIdentities struct{ maps pinnedmaps.Maps }

// realClasses is the pinned map.
type realClasses struct{ maps pinnedmaps.Maps }

func newKernel(m pinnedmaps.Maps) (entryMaps, cidrMap, identityMap, classMap) {
	return realEntries{m}, realCIDRs{m}, realIdentities{m}, realClasses{m}
}

// place returns the map of an entry and the entry's key in the map.
func place(id uint32, k policycompiler.Key) (name string, key any) {
	kind := bpf.PolicyKind(k.Kind)
	if k.IsRange() {
		return bpf.MapPolicyRanges, bpf.NewPolicyRangeKey(id, kind, k.Identity, k.Protocol, k.Port, int(k.PortBits))
	}
	level := bpf.PolicyAll
	switch {
	case k.PortBits != 0:
		level = bpf.PolicyPort
	case k.Protocol != 0:
		level = bpf.PolicyProtocol
	}
	return bpf.MapPolicy, bpf.NewPolicyKey(id, kind, k.Identity, level, k.Protocol, k.Port)
}

func (r realEntries) Put(id uint32, e policycompiler.Entry) error {
	name, key := place(id, e.Key)
	value := bpf.PolicyEntry{Rule: e.Rule}
	if e.Deny {
		value.Deny = 1
	}
	return r.maps.Put(name, key, value)
}

func (r realEntries) Delete(id uint32, k policycompiler.Key) error {
	name, key := place(id, k)
	if err := r.maps.Delete(name, key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	return nil
}

func (r realEntries) Get(id uint32, k policycompiler.Key) (e policycompiler.Entry, found bool, err error) {
	name, key := place(id, k)
	m, err := r.maps.Get(name)
	if err != nil {
		return e, false, err
	}
	var v bpf.PolicyEntry
	switch err := m.Lookup(key, &v); {
	case errors.Is(err, ebpf.ErrKeyNotExist):
		return e, false, nil
	case err != nil:
		return e, false, err
	}
	return policycompiler.Entry{Key: k, Rule: v.Rule, Deny: v.Deny != 0}, true, nil
}

func (r realEntries) Some(c *cursor, n int) (map[entryKey]policycompiler.Entry, bool, error) {
	if c.entriesEnd && c.rangesEnd {
		*c = cursor{}
	}
	out := make(map[entryKey]policycompiler.Entry)
	err := some(r.maps, bpf.MapPolicy, &c.entries, &c.entriesEnd, n, func(k bpf.PolicyKey, v bpf.PolicyEntry) {
		key := policycompiler.Key{Identity: k.Identity, Kind: policycompiler.Kind(k.Kind), Protocol: k.Protocol, PortBits: k.PortBits,
			Port: k.HostPort()}
		out[entryKey{k.Policy, key}] = policycompiler.Entry{Key: key, Rule: v.Rule, Deny: v.Deny != 0}
	})
	if err == nil {
		err = some(r.maps, bpf.MapPolicyRanges, &c.ranges, &c.rangesEnd, n, func(k bpf.PolicyRangeKey, v bpf.PolicyEntry) {
			first, last := k.Ports()
			key := policycompiler.Key{Identity: k.Identity, Kind: policycompiler.Kind(k.Kind), Protocol: k.Protocol, Port: first,
				PortBits: portBits(first, last)}
			out[entryKey{k.Policy, key}] = policycompiler.Entry{Key: key, Rule: v.Rule, Deny: v.Deny != 0}
		})
	}
	return out, c.entriesEnd && c.rangesEnd, err
}

// portBits returns the number of leading bits that all ports of a block have in common.
func portBits(first, last uint16) (n uint8) {
	for size := uint32(last) - uint32(first) + 1; size < 1<<16; size <<= 1 {
		n++
	}
	return n
}

// some reads the next n entries of one map. It reads none if end is true.
func some[K, V any](all pinnedmaps.Maps, name string, c *ebpf.MapBatchCursor, end *bool, n int, found func(K, V)) error {
	if *end {
		return nil
	}
	m, err := all.Get(name)
	if err != nil {
		return err
	}
	keys, values := make([]K, n), make([]V, n)
	count, err := m.BatchLookup(c, keys, values, nil)
	if *end = errors.Is(err, ebpf.ErrKeyNotExist); err != nil && !*end {
		*c = ebpf.MapBatchCursor{}
		return fmt.Errorf("read map %s: %w", name, err)
	}
	for i := range count {
		found(keys[i], values[i])
	}
	return nil
}

func (r realEntries) Capacity() (capacity, error) {
	entries, err := r.maps.Get(bpf.MapPolicy)
	if err != nil {
		return capacity{}, err
	}
	ranges, err := r.maps.Get(bpf.MapPolicyRanges)
	if err != nil {
		return capacity{}, err
	}
	return capacity{int(entries.MaxEntries()), int(ranges.MaxEntries())}, nil
}

func (r realEntries) Slots() (map[uint16]slot, error) {
	m, err := r.maps.Get(bpf.MapEndpointFacts)
	if err != nil {
		return nil, err
	}
	ids, facts := make([]uint32, m.MaxEntries()), make([]bpf.EndpointFacts, m.MaxEntries())
	var c ebpf.MapBatchCursor
	n, err := m.BatchLookup(&c, ids, facts, nil) // one call: the array is small
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil, fmt.Errorf("read map %s: %w", bpf.MapEndpointFacts, err)
	}
	slots := make(map[uint16]slot)
	for i, f := range facts[:n] {
		if f.Ifindex != 0 {
			slots[uint16(ids[i])] = slot{f.Ifindex, f.Identity, [4]uint32{f.PolicyIngress, f.AuditIngress, f.PolicyEgress, f.AuditEgress},
				[4]uint32{f.ShapeIngress, f.AuditShapeIngress, f.ShapeEgress, f.AuditShapeEgress}}
		}
	}
	return slots, nil
}

func (r realCIDRs) Put(prefix netip.Prefix, number uint32) error {
	return r.maps.Put(bpf.MapCIDRs, bpf.NewLpmKey(prefix), bpf.NewCIDR(prefix, number))
}

func (r realCIDRs) Delete(prefix netip.Prefix) error {
	if err := r.maps.Delete(bpf.MapCIDRs, bpf.NewLpmKey(prefix)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	return nil
}

// batch is the number of entries that one call reads.
const batch = 4096

func (r realCIDRs) Dump() (map[netip.Prefix]uint32, error) {
	out := make(map[netip.Prefix]uint32)
	var c ebpf.MapBatchCursor
	for end := false; !end; {
		err := some(r.maps, bpf.MapCIDRs, &c, &end, batch, func(k bpf.LpmKey, v bpf.CIDR) {
			p := bpf.PrefixOf(k)
			switch {
			case !p.IsValid():
			case v.Bits == k.Prefixlen:
				out[p] = v.Identity
			default:
				out[p] = 0 // the entry leads to no wider range, so it must be written again
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (r realCIDRs) Capacity() (int, error) {
	m, err := r.maps.Get(bpf.MapCIDRs)
	if err != nil {
		return 0, err
	}
	return int(m.MaxEntries()), nil
}

func (r realCIDRs) Raise() error {
	m, err := r.maps.Get(bpf.MapEpochs)
	if err != nil {
		return err
	}
	var epoch uint32
	if err := m.Lookup(bpf.EpochCIDRs, &epoch); err != nil {
		return fmt.Errorf("read map %s: %w", bpf.MapEpochs, err)
	}
	return r.maps.Put(bpf.MapEpochs, bpf.EpochCIDRs, epoch+1)
}

func (r realIdentities) Put(word uint32, bits uint64) error {
	return r.maps.Put(bpf.MapKnownIdentities, word, bits)
}

func (r realIdentities) Dump() ([]uint64, error) {
	words := make([]uint64, bpf.IdentityWords)
	var c ebpf.MapBatchCursor
	for end := false; !end; {
		if err := some(r.maps, bpf.MapKnownIdentities, &c, &end, batch, func(word uint32, bits uint64) { words[word] = bits }); err != nil {
			return nil, err
		}
	}
	return words, nil
}

func (r realClasses) Put(identity uint32, classes policycompiler.Classes) error {
	return r.maps.Put(bpf.MapIdentityClasses, identity, bpf.IdentityClasses{Cluster: classes.Cluster, Namespace: classes.Namespace})
}

func (r realClasses) Dump() (map[uint32]policycompiler.Classes, error) {
	all := map[uint32]policycompiler.Classes{}
	var c ebpf.MapBatchCursor
	for end := false; !end; {
		err := some(r.maps, bpf.MapIdentityClasses, &c, &end, batch, func(identity uint32, v bpf.IdentityClasses) {
			if v != (bpf.IdentityClasses{}) {
				all[identity] = policycompiler.Classes{Cluster: v.Cluster, Namespace: v.Namespace}
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}
