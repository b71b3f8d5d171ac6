// Package podclaims finds CiliumEndpoints by the addresses that they claim.
//
// A cluster has 150,000 of them, and an index of a table takes 0.3 kB for each. What is here takes less than 50 bytes, and only while a cell needs it.
package podclaims

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/waggle-net/waggle/pkg/tables/cilium"
)

// Claims are the objects of one table, by address. A pod that was replaced may be there beside the one that has its address now. The zero value has no
// objects. Claims are for one goroutine.
type Claims struct {
	names  names
	sole   Index                             // of addresses that one object claims
	shared map[netip.Addr][]*cilium.Endpoint // of those that several claim, in the order of [Claims.At] reversed
}

// Put adds a row, and returns the one of the same object that it replaces, nil when there was none.
func (c *Claims) Put(ep *cilium.Endpoint) (old *cilium.Endpoint) {
	old = c.names.add(ep)
	c.removeAll(old)
	for i := range ep.NumAddrs() {
		c.add(ep.Addr(i), ep)
	}
	return old
}

// Delete removes the row of an object and returns it, nil when there was none.
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

// Get returns the row of an object, by the name of any row of it; nil when there is none.
func (c *Claims) Get(ep *cilium.Endpoint) *cilium.Endpoint { return c.names.get(ep) }

// Sole is the index of the addresses that one object claims. The caller may set marks in it: that of an address is lost when an object that claims the
// address is put or deleted.
func (c *Claims) Sole() *Index { return &c.sole }

// Claimed reports whether a row claims an address.
func (c *Claims) Claimed(addr netip.Addr) bool {
	return c.sole.Get(addr) != nil || c.shared[addr] != nil
}

// At returns the rows that claim an address. The one that was created last comes first, of equal ones the one that was put last. The caller must not
// change the claims meanwhile.
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
