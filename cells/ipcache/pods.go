package ipcache

import (
	"net/netip"
	"slices"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/clusternodes"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
)

// pods are the CiliumEndpoints, by address. A pod that was replaced may be there beside the one that has its address now.
type pods struct {
	byName map[string]*cilium.Endpoint
	byAddr map[netip.Addr][]*cilium.Endpoint // the one that was made last comes last, of equal ones the one that changed last
	// byNode has the objects by the address of the node that they name.
	byNode map[netip.Addr][]*cilium.Endpoint
	// byRange has the keys of byAddr by the block of addresses around each, see [block].
	byRange map[netip.Prefix][]netip.Addr
}

func newPods() pods {
	return pods{map[string]*cilium.Endpoint{}, map[netip.Addr][]*cilium.Endpoint{}, map[netip.Addr][]*cilium.Endpoint{}, map[netip.Prefix][]netip.Addr{}}
}

// blockBits are the lengths of the blocks of [pods], IPv4 and IPv6: the usual lengths of the range of a node.
var blockBits = [2]int{24, 64}

// block returns the block of a valid address.
func block(addr netip.Addr) netip.Prefix {
	bits := blockBits[0]
	if addr.Is6() {
		bits = blockBits[1]
	}
	return netip.PrefixFrom(addr, bits).Masked()
}

// apply takes over a change, and adds the addresses of which it may say something to touched.
func (p pods) apply(change statedb.Change[*cilium.Endpoint], touched map[netip.Addr]struct{}) {
	ep := change.Object
	name := ep.Key()
	if old := p.byName[name]; old != nil {
		for _, addr := range old.Addrs {
			if forget(p.byAddr, addr, old); p.byAddr[addr] == nil {
				forget(p.byRange, block(addr), addr)
			}
			touched[addr] = struct{}{}
		}
		forget(p.byNode, old.Node, old)
		delete(p.byName, name)
	}
	if change.Deleted {
		return
	}
	p.byName[name] = ep
	if ep.Node.IsValid() {
		p.byNode[ep.Node] = append(p.byNode[ep.Node], ep)
	}
	for _, addr := range ep.Addrs {
		list := p.byAddr[addr]
		if list == nil {
			p.byRange[block(addr)] = append(p.byRange[block(addr)], addr)
		}
		at := len(list)
		for at > 0 && list[at-1].Created > ep.Created {
			at--
		}
		p.byAddr[addr] = slices.Insert(list, at, ep)
		touched[addr] = struct{}{}
	}
}

// forget takes a value out of the list of a key.
func forget[K, V comparable](lists map[K][]V, key K, value V) {
	rest := slices.DeleteFunc(lists[key], func(v V) bool { return v == value })
	if len(rest) == 0 {
		delete(lists, key)
		return
	}
	lists[key] = rest
}

// touch adds the addresses to touched about which something else may hold when a node is another than before: those of pods that name it, its own, and those in
// its ranges.
func (p pods) touch(before, after clusternodes.Node, touched map[netip.Addr]struct{}) {
	for addr := range clusternodes.Differing(before.All(), after.All()) {
		for _, ep := range p.byNode[addr] {
			for _, of := range ep.Addrs {
				touched[of] = struct{}{}
			}
		}
		if p.byAddr[addr] != nil {
			touched[addr] = struct{}{}
		}
	}
	for cidr := range clusternodes.Differing(before.CIDRs, after.CIDRs) {
		p.touchRange(cidr.Prefix, touched)
	}
}

// touchRange adds the addresses of pods in a range. Of a range with more blocks than have pods it looks at all blocks.
func (p pods) touchRange(cidr netip.Prefix, touched map[netip.Addr]struct{}) {
	within := func(list []netip.Addr) {
		for _, addr := range list {
			if cidr.Contains(addr) {
				touched[addr] = struct{}{}
			}
		}
	}
	first := block(cidr.Addr())
	bits := first.Bits() - cidr.Bits() // of the number of a block in the range
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

// nextBlock returns the block behind another one; behind the last one the first.
func nextBlock(b netip.Prefix) netip.Prefix {
	bytes := b.Addr().AsSlice()
	for i := b.Bits()/8 - 1; i >= 0; i-- {
		if bytes[i]++; bytes[i] != 0 {
			break
		}
	}
	addr, _ := netip.AddrFromSlice(bytes) // as long as before
	return netip.PrefixFrom(addr, b.Bits())
}
