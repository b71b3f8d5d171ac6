package servicemaps

import (
	"cmp"
	"fmt"
	"math"
	"strings"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
)

// namespace is the usage of the maps by the Services and host ports of a namespace. It includes planned entries.
type namespace struct {
	// name is empty if there is no quota: for the Service of the API server, and for unclaimed entries.
	name                     string
	entries, backends, slots int
	quarantined              int // part of slots
}

// namespaces are the usages of all namespaces, by name.
type namespaces map[string]*namespace

// of returns the namespace of a service. The name of a host port begins with the namespace of its pod.
func (n namespaces) of(service string) *namespace {
	name, _, _ := strings.Cut(service, "/")
	if service == "default/kubernetes" {
		name = ""
	}
	if n[name] == nil {
		n[name] = &namespace{name: name}
	}
	return n[name]
}

// ofBackend returns the namespace for which a backend counts: the present one as long as a service of it uses the backend, otherwise the one with the fewest
// backends. So a namespace does not use up the quota of another one, whose pods its services name.
func (n namespaces) ofBackend(row *backends.Backend, present *namespace) (fewest *namespace) {
	for _, service := range row.Services {
		one := n.of(service)
		if one == present {
			return one
		}
		if fewest == nil || cmp.Or(cmp.Compare(only(one.name != "", uint8(1)), only(fewest.name != "", uint8(1))), cmp.Compare(one.backends, fewest.backends)) < 0 {
			fewest = one
		}
	}
	return cmp.Or(fewest, n.of(""))
}

// prune removes namespaces without entries.
func (n namespaces) prune() {
	for name, one := range n {
		if *one == (namespace{name: name}) {
			delete(n, name)
		}
	}
}

// claim counts the existing entries of a row for its namespace.
func (f *inForce) claim(row *frontends.Frontend) *namespace {
	owner, p := f.namespaces.of(row.Service), plan{key: externalKey(row)}
	for _, scope := range scopes(row) {
		e := f.entries[p.keyOf(scope)]
		if e == nil || e.owner == owner {
			continue
		}
		n := len(f.slots.list(e))
		e.owner.entries, e.owner.slots = e.owner.entries-1, e.owner.slots-n
		owner.entries, owner.slots = owner.entries+1, owner.slots+n
		e.owner = owner
		f.freed |= capacityOf(bpf.MapServices) | capacityOf(bpf.MapServiceSlots)
	}
	return owner
}

// claimBackend counts an existing backend for a namespace of its row.
func (f *inForce) claimBackend(row *backends.Backend) {
	b := f.backends[row.ID]
	if b == nil {
		return
	}
	if owner := f.namespaces.ofBackend(row, b.owner); owner != b.owner {
		b.owner.backends--
		owner.backends++
		b.owner = owner
		f.freed |= capacityOf(bpf.MapBackends)
	}
}

// quotaOf returns the quota of a namespace in a map; 0 for none. Only services, backends and service_slots have quotas.
func (f *inForce) quotaOf(in string) int {
	size, services := int(f.sizes[in]), int(f.sizes[bpf.MapServices])
	switch {
	case f.namespaceEntries == 0:
		return 0
	case f.namespaceEntries < 0:
		return max(size/2, 1)
	case in == bpf.MapServiceSlots: // the flag refers to services, and slots have a quota in proportion
		return max(1, min(f.namespaceEntries, services)*size/max(1, services))
	}
	return f.namespaceEntries
}

// quotaLeft returns how much more of a map a namespace may use. Entries that already exist stay, also beyond a quota. Entries that are not claimed yet may belong
// to the namespace: without them, a restart would give it a second quota while its rows arrive.
func (f *inForce) quotaLeft(n *namespace, in string) int {
	quota := f.quotaOf(in)
	if quota == 0 || n.name == "" {
		return math.MaxInt
	}
	return max(0, quota-n.used(in)-f.unclaimed.used(in))
}

func (n *namespace) used(in string) int {
	switch in {
	case bpf.MapBackends:
		return n.backends
	case bpf.MapServiceSlots:
		return n.slots
	}
	return n.entries
}

// mayTake reports whether a namespace may get a run of n slots for an entry that has some. Those stay in quarantine and count as well, so a Service with more than
// half of the quota could never get a longer run: one entry at a time may move beyond the quota, and none until the slots are within it again. Slots of an entry that
// may not move are overwritten.
func (f *inForce) mayTake(of *namespace, n, has int) bool {
	left := f.quotaLeft(of, bpf.MapServiceSlots)
	return n <= left || has > 0 && of.slots <= f.quotaOf(bpf.MapServiceSlots) && n-has <= left
}

// usedUp returns the capacity that a row does not get, because the quota of its namespace is used up; freed entries of other namespaces are none for it.
func (f *inForce) usedUp(x failure) (none capacity) {
	n := f.namespaces[x.namespace]
	if n == nil || x.quota == 0 {
		return 0
	}
	for _, in := range []string{bpf.MapServices, bpf.MapBackends, bpf.MapServiceSlots} {
		if x.quota&capacityOf(in) != 0 && f.quotaLeft(n, in) == 0 {
			none |= capacityOf(in)
		}
	}
	return none
}

// overQuota counts a refused row, and returns the error.
func (f *inForce) overQuota(n *namespace, in string) error {
	f.rejected[in]++
	return &noCapacity{of: capacityOf(in), quota: true, error: fmt.Errorf("the Services of namespace %s have used up its quota of %d in the map %s: raise --service-entries-per-namespace",
		n.name, f.quotaOf(in), in)}
}

// noEntry returns why a namespace does not get another entry of the map services, nil if it does. A full map is not left to the kernel, so that the parts of
// entries that do not fit are not computed and written in vain.
func (f *inForce) noEntry(n *namespace) error {
	if f.quotaLeft(n, bpf.MapServices) == 0 {
		return f.overQuota(n, bpf.MapServices)
	}
	if len(f.entries)+f.planned < int(f.sizes[bpf.MapServices]) {
		return nil
	}
	f.rejected[bpf.MapServices]++
	return &noCapacity{of: capacityOf(bpf.MapServices), error: fmt.Errorf("the map %s is full: raise --bpf-lb-map-max", bpf.MapServices)}
}
