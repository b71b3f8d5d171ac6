// Package podclaims finds CiliumEndpoints by the addresses that they claim.
//
// A cluster has 150,000 CiliumEndpoints, and an index of a table takes 0.3 kB for each. [Claims] take at most 56 bytes for each, and only while a cell needs
// them.
package podclaims

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/waggle-net/waggle/pkg/tables/cilium"
)

// Claims holds the objects of one table by address. A replaced pod may be present beside the pod that has its address now. The zero value has no objects.
// Claims is not safe for concurrent use.
type Claims struct {
	names  names
	sole   Index                             // addresses that one object claims
	shared map[netip.Addr][]*cilium.Endpoint // addresses that several objects claim, in the reverse order of [Claims.At]
}

// Put adds a row and returns the row of the same object that it replaces, or nil.
func (c *Claims) Put(ep *cilium.Endpoint) (old *cilium.Endpoint) {
	old = c.names.add(ep)
	c.removeAll(old)
	for i := range ep.NumAddrs() {
		c.add(ep.Addr(i), ep)
	}
	return old
}

// Delete removes the row of an object and returns it, or nil if there was none.
func (c *Claims) Delete(ep *cilium.Endpoint) (old *cilium.Endpoint) {
	old = c.names.take(ep)
	c.removeAll(old)
	return old
}

func (c *Claims) removeAll(old *cilium.Endpoint) {
	if old == nil {
		return
	}
	for i := range old.NumAddrs() {
		c.remove(old.Addr(i), old)
	}
}

func (c *Claims) add(addr netip.Addr, ep *cilium.Endpoint) {
	other, list := c.sole.Get(addr), c.shared[addr]
	switch {
	case other == ep || slices.Contains(list, ep):
		return // the object names the address twice
	case other == nil && list == nil:
		c.sole.Set(addr, ep)
		return
	case list == nil:
		c.sole.Delete(addr)
		list = []*cilium.Endpoint{other}
	}
	at := len(list)
	for at > 0 && list[at-1].Created() > ep.Created() {
		at--
	}
	if c.shared == nil {
		c.shared = map[netip.Addr][]*cilium.Endpoint{}
	}
	c.shared[addr] = slices.Insert(list, at, ep)
}

func (c *Claims) remove(addr netip.Addr, ep *cilium.Endpoint) {
	if c.sole.Get(addr) == ep {
		c.sole.Delete(addr)
		return
	}
	rest := slices.DeleteFunc(c.shared[addr], func(o *cilium.Endpoint) bool { return o == ep })
	switch len(rest) {
	case 0:
		delete(c.shared, addr)
	case 1:
		delete(c.shared, addr)
		c.sole.Set(addr, rest[0])
	default:
		c.shared[addr] = rest
	}
}

// Get returns the row of the object with the name of ep, or nil.
func (c *Claims) Get(ep *cilium.Endpoint) *cilium.Endpoint { return c.names.get(ep) }

// Sole returns the index of the addresses that one object claims. The caller may set marks in it. The mark of an address is lost when an object that claims the
// address is put or deleted.
func (c *Claims) Sole() *Index { return &c.sole }

// Claimed reports whether a row claims an address.
func (c *Claims) Claimed(addr netip.Addr) bool {
	return c.sole.Get(addr) != nil || c.shared[addr] != nil
}

// At returns the rows that claim an address, the last created row first. Of rows with the same time of creation, the last put row is first. The caller must not
// change the claims during the iteration.
func (c *Claims) At(addr netip.Addr) iter.Seq[*cilium.Endpoint] {
	return func(yield func(*cilium.Endpoint) bool) {
		if ep := c.sole.Get(addr); ep != nil {
			yield(ep)
			return
		}
		for _, ep := range slices.Backward(c.shared[addr]) {
			if !yield(ep) {
				return
			}
		}
	}
}
