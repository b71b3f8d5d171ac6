package ipcachemaps

import (
	"net/netip"
	"slices"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/clusternodes"
	"github.com/waggle-net/waggle/pkg/podclaims"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// pods indexes the CiliumEndpoints by name, by address, by node address and by block. A cluster may have 150,000 of them, so it stores pointers to rows only.
type pods struct {
	podclaims.Claims
	// byNode has the objects by the node address that they name.
	byNode map[netip.Addr][]*cilium.Endpoint
	// byRange has the objects by the blocks that contain their addresses, see [block].
	byRange map[netip.Prefix][]*cilium.Endpoint
	// decided has the objects of the current claims, except objects that are the only one with their address. Those are marked instead, and almost all objects are
	// of this kind.
	decided   map[netip.Addr]*cilium.Endpoint
	addresses int // number of claimed addresses
}

func newPods() pods {
	return pods{byNode: map[netip.Addr][]*cilium.Endpoint{}, byRange: map[netip.Prefix][]*cilium.Endpoint{}, decided: map[netip.Addr]*cilium.Endpoint{}}
}

// blockBits are the prefix lengths of blocks for IPv4 and IPv6. They are the usual lengths of a node's range.
var blockBits = [2]int{24, 64}

// block returns the block that contains a valid address.
func block(addr netip.Addr) netip.Prefix {
	bits := blockBits[0]
	if addr.Is6() {
		bits = blockBits[1]
	}
	return netip.PrefixFrom(addr, bits).Masked()
}

// apply applies a change, and adds the addresses whose claim may change to touched.
func (p *pods) apply(change statedb.Change[*cilium.Endpoint], touched map[netip.Addr]struct{}) {
	p.unmark(p.Get(change.Object))
	if !change.Deleted {
		p.unmark(change.Object)
	}
	if old := p.replace(change); old != nil {
		for i := range old.NumAddrs() {
			forget(p.byRange, block(old.Addr(i)), old)
			touched[old.Addr(i)] = struct{}{}
		}
		forget(p.byNode, old.Node(), old)
	}
	if change.Deleted {
		return
	}
	ep := change.Object
	if node := ep.Node(); node.IsValid() {
		remember(p.byNode, node, ep)
	}
	for i := range ep.NumAddrs() {
		around := block(ep.Addr(i))
		remember(p.byRange, around, ep)
		touched[ep.Addr(i)] = struct{}{}
	}
}

// unmark moves the marked claims of an object to decided, before the object is put or deleted. The object may be nil.
func (p *pods) unmark(ep *cilium.Endpoint) {
	if ep == nil {
		return
	}
	for i := range ep.NumAddrs() {
		if by := p.Sole().Marked(ep.Addr(i)); by != nil {
			p.decided[ep.Addr(i)] = by
			p.Sole().Mark(ep.Addr(i), false)
		}
	}
}

// claimedBy returns the object of the current claim of an address; nil when the address is not claimed.
func (p *pods) claimedBy(addr netip.Addr) *cilium.Endpoint {
	if by := p.decided[addr]; by != nil {
		return by
	}
	return p.Sole().Marked(addr)
}

// claim sets the object by which an address is claimed; nil removes the claim.
func (p *pods) claim(addr netip.Addr, by *cilium.Endpoint) {
	if p.claimedBy(addr) != nil {
		p.addresses--
	}
	delete(p.decided, addr)
	sole := p.Sole().Get(addr)
	p.Sole().Mark(addr, by != nil && by == sole)
	if by == nil {
		return
	}
	if p.addresses++; by != sole {
		p.decided[addr] = by
	}
}

func (p *pods) replace(change statedb.Change[*cilium.Endpoint]) (old *cilium.Endpoint) {
	if change.Deleted {
		return p.Delete(change.Object)
	}
	return p.Put(change.Object)
}

// remember adds a value to the list of a key. Many lists are long-lived and rarely grow, so a full list grows by an eighth and is not doubled.
func remember[K, V comparable](lists map[K][]V, key K, value V) {
	list := lists[key]
	if len(list) == cap(list) {
		list = append(make([]V, 0, len(list)+len(list)/8+1), list...)
	}
	lists[key] = append(list, value)
}

// forget removes a value from the list of a key.
func forget[K, V comparable](lists map[K][]V, key K, value V) {
	rest := slices.DeleteFunc(lists[key], func(v V) bool { return v == value })
	if len(rest) == 0 {
		delete(lists, key)
		return
	}
	lists[key] = rest
}

// touch adds the addresses whose claim may change with a node to touched: addresses of pods that name the node, the node's own addresses, and addresses in its
// ranges.
func (p *pods) touch(before, after *nodes.Node, touched map[netip.Addr]struct{}) {
	for addr := range clusternodes.Differing(clusternodes.AddressesOf(before), clusternodes.AddressesOf(after)) {
		for _, ep := range p.byNode[addr] {
			for i := range ep.NumAddrs() {
				touched[ep.Addr(i)] = struct{}{}
			}
		}
		if p.Claimed(addr) {
			touched[addr] = struct{}{}
		}
	}
	for cidr := range clusternodes.Differing(clusternodes.RangesOf(before), clusternodes.RangesOf(after)) {
		p.touchRange(cidr, touched)
	}
}

// touchRange adds the addresses of pods in a range to touched. If the range has more blocks than byRange, it scans byRange instead.
func (p *pods) touchRange(cidr netip.Prefix, touched map[netip.Addr]struct{}) {
	within := func(list []*cilium.Endpoint) {
		for _, ep := range list {
			for i := range ep.NumAddrs() {
				if addr := ep.Addr(i); cidr.Contains(addr) {
					touched[addr] = struct{}{}
				}
			}
		}
	}
	first := block(cidr.Addr())
	bits := first.Bits() - cidr.Bits() // bits of a block's number within the range
	if bits > 30 || bits > 0 && 1<<bits > len(p.byRange) {
		for _, list := range p.byRange {
			within(list)
		}
		return
	}
	for at, left := first, 1<<max(bits, 0); left > 0; left-- {
		within(p.byRange[at])
		at = nextBlock(at)
	}
}

// nextBlock returns the next block; the first one follows the last one.
func nextBlock(b netip.Prefix) netip.Prefix {
	bytes := b.Addr().AsSlice()
	for i := b.Bits()/8 - 1; i >= 0; i-- {
		if bytes[i]++; bytes[i] != 0 {
			break
		}
	}
	addr, _ := netip.AddrFromSlice(bytes) // same length as the given address
	return netip.PrefixFrom(addr, b.Bits())
}
