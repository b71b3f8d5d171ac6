package servicecontroller

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"

	"github.com/waggle-net/waggle/pkg/clusternodes"
)

// addresses is an index of services by the addresses that concern them.
type addresses struct {
	clusterIPs addressCounts               // number of Services with the address, including Services of other proxies
	elsewhere  map[string][]netip.Addr     // by Service: its ClusterIPs that are in no row, because it has no row or is postponed
	external   bart.Table[map[string]bool] // services that want an external address, in force or not
	externalOf map[string][]netip.Addr     // external addresses by service
	placed     map[string]bool             // services that depend on addresses of this node
}

func newAddresses() addresses {
	return addresses{clusterIPs: newAddressCounts(0, 0), elsewhere: map[string][]netip.Addr{}, externalOf: map[string][]netip.Addr{},
		placed: map[string]bool{}}
}

// addressCounts are numbers of Services by address. IPv4 addresses have a map of their own, because its elements take 8 bytes instead of 32.
type addressCounts struct {
	ipv4 map[[4]byte]int32
	ipv6 map[netip.Addr]int32
}

// newAddressCounts returns maps with memory for some addresses of each family.
func newAddressCounts(ipv4, ipv6 int) addressCounts {
	return addressCounts{make(map[[4]byte]int32, ipv4), make(map[netip.Addr]int32, ipv6)}
}

func (c *addressCounts) of(a netip.Addr) int32 {
	if a.Is4() {
		return c.ipv4[a.As4()]
	}
	return c.ipv6[a]
}

func (c *addressCounts) add(a netip.Addr, n int32) {
	if a.Is4() {
		count(c.ipv4, a.As4(), n)
	} else {
		count(c.ipv6, a, n)
	}
}

// count adds n to a number, and removes the number when it is 0.
func count[K comparable](numbers map[K]int32, key K, n int32) {
	if numbers[key] += n; numbers[key] == 0 {
		delete(numbers, key)
	}
}

// replaceClusterIPs records the ClusterIPs of a service, and calls changed with each address that is added or removed.
func (x *addresses) replaceClusterIPs(before, now []netip.Addr, changed func(netip.Addr)) {
	for _, a := range before {
		if !slices.Contains(now, a) {
			x.clusterIPs.add(a, -1)
			changed(a)
		}
	}
	for _, a := range now {
		if !slices.Contains(before, a) {
			x.clusterIPs.add(a, 1)
			changed(a)
		}
	}
}

// taken reports whether an address is the ClusterIP of a Service other than the one whose ClusterIPs are own. Services of other proxies count.
func (x *addresses) taken(own []netip.Addr, a netip.Addr) bool {
	others := x.clusterIPs.of(a)
	if others > 0 && slices.Contains(own, a) {
		others--
	}
	return others > 0
}

// want records the external addresses that a service wants, and whether it depends on addresses of this node.
func (x *addresses) want(name string, external []netip.Addr, placed bool) {
	for _, a := range x.externalOf[name] {
		names, _ := x.external.Get(clusternodes.Whole(a))
		if delete(names, name); len(names) == 0 {
			x.external.Delete(clusternodes.Whole(a))
		}
	}
	delete(x.externalOf, name)
	for _, a := range external {
		names, found := x.external.Get(clusternodes.Whole(a))
		if !found {
			names = map[string]bool{}
			x.external.Insert(clusternodes.Whole(a), names)
		}
		names[name] = true
	}
	if len(external) > 0 {
		x.externalOf[name] = external
	}
	if delete(x.placed, name); placed {
		x.placed[name] = true
	}
}

// wanting returns the services that want an external address in a range.
func (x *addresses) wanting(p netip.Prefix) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, names := range x.external.Subnets(p) {
			for name := range names {
				if !yield(name) {
					return
				}
			}
		}
	}
}
