// Package podclaims finds CiliumEndpoints by the addresses that they claim.
//
// A cluster has 150,000 of them, and an index of a table takes 0.3 kB for each. What is here takes a third, and only while a cell needs it.
package podclaims

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/waggle-net/waggle/pkg/tables/cilium"
)

// Claims are the objects of one table, by address. A pod that was replaced may be there beside the one that has its address now. The zero value is not
// ready; see [New]. Claims are for one goroutine.
type Claims struct {
	byName map[name]*cilium.Endpoint
	sole   map[netip.Addr]*cilium.Endpoint   // of addresses that one object claims
	shared map[netip.Addr][]*cilium.Endpoint // of those that several claim, in the order of [Claims.At] reversed
}

// name is that of an object. Its parts are those of the row, so that a key takes no memory of its own.
type name struct{ namespace, name string }

// New returns no claims.
func New() *Claims {
	return &Claims{map[name]*cilium.Endpoint{}, map[netip.Addr]*cilium.Endpoint{}, map[netip.Addr][]*cilium.Endpoint{}}
}

// Put adds a row, and returns the one of the same object that it replaces, nil when there was none.
func (c *Claims) Put(ep *cilium.Endpoint) (old *cilium.Endpoint) {
	old = c.Delete(ep)
	c.byName[name{ep.Namespace, ep.Name}] = ep
	for _, addr := range ep.Addrs {
		c.add(addr, ep)
	}
	return old
}

// Delete removes the row of an object and returns it, nil when there was none.
func (c *Claims) Delete(ep *cilium.Endpoint) (old *cilium.Endpoint) {
	key := name{ep.Namespace, ep.Name}
	if old = c.byName[key]; old == nil {
		return nil
	}
	delete(c.byName, key) // with its texts, which are those of the old row
	for _, addr := range old.Addrs {
		c.remove(addr, old)
	}
	return old
}

func (c *Claims) add(addr netip.Addr, ep *cilium.Endpoint) {
	other, list := c.sole[addr], c.shared[addr]
	switch {
	case other == ep || slices.Contains(list, ep):
		return // the object names the address twice
	case other == nil && list == nil:
		c.sole[addr] = ep
		return
	case list == nil:
		delete(c.sole, addr)
		list = []*cilium.Endpoint{other}
	}
	at := len(list)
	for at > 0 && list[at-1].Created > ep.Created {
		at--
	}
	c.shared[addr] = slices.Insert(list, at, ep)
}

func (c *Claims) remove(addr netip.Addr, ep *cilium.Endpoint) {
	if c.sole[addr] == ep {
		delete(c.sole, addr)
		return
	}
	rest := slices.DeleteFunc(c.shared[addr], func(o *cilium.Endpoint) bool { return o == ep })
	switch len(rest) {
	case 0:
		delete(c.shared, addr)
	case 1:
		delete(c.shared, addr)
		c.sole[addr] = rest[0]
	default:
		c.shared[addr] = rest
	}
}

// At returns the rows that claim an address. The one that was created last comes first, of equal ones the one that was put last. The caller must not
// change the claims meanwhile.
func (c *Claims) At(addr netip.Addr) iter.Seq[*cilium.Endpoint] {
	return func(yield func(*cilium.Endpoint) bool) {
		if ep := c.sole[addr]; ep != nil {
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
