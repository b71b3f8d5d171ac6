package servicemaps

import (
	"cmp"
	"strings"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/tables/backends"
)

// share is the number of places in the maps that the rows of a namespace have. A nil share belongs to entries of a previous run whose row is not known yet.
type share struct {
	namespace                string // empty for rows that have no namespace's share
	entries, backends, slots uint32
	quarantined              uint32 // number of slots in quarantine, which are part of slots
}

// shares are the shares of all namespaces, by name.
type shares map[string]*share

// of returns the share of a service. Host ports, whose names contain a colon, and the Service of the API server belong to the node and not to a tenant.
func (s shares) of(service string) *share {
	namespace, _, _ := strings.Cut(service, "/")
	if service == "default/kubernetes" || strings.Contains(service, ":") {
		namespace = ""
	}
	if s[namespace] == nil {
		s[namespace] = &share{namespace: namespace}
	}
	return s[namespace]
}

// ofBackend returns the share that a backend counts for. Of several namespaces whose services use it, this is the one with the fewest backends: otherwise one
// namespace could use up another one's share.
func (s shares) ofBackend(row *backends.Backend) (least *share) {
	for _, service := range row.Services {
		if one := s.of(service); least == nil || compareShares(one, least, bpf.MapBackends) < 0 {
			least = one
		}
	}
	if least == nil {
		return s.of("")
	}
	return least
}

// prune deletes the shares of namespaces that have no place and no row that waits for one.
func (s shares) prune(left *backlog) {
	for namespace, one := range s {
		if one.entries == 0 && one.backends == 0 && one.slots == 0 && !left.again.waits.of(one) && !left.againBackends.waits.of(one) {
			delete(s, namespace)
		}
	}
}

// has returns the number of places in a map. For maps without a count of their own, the number of entries stands for it.
func (s *share) has(in string) uint32 {
	switch in {
	case bpf.MapBackends:
		return s.backends
	case bpf.MapServiceSlots:
		return s.slots
	}
	return s.entries
}

// compareShares orders shares: those of the node first, then those with the fewest places in a map.
func compareShares(a, b *share, in string) int {
	if (a.namespace == "") != (b.namespace == "") {
		return cmp.Compare(a.namespace, b.namespace)
	}
	return cmp.Or(cmp.Compare(a.has(in), b.has(in)), cmp.Compare(a.namespace, b.namespace))
}

// addEntries adds entries of services, which may be negative.
func (s *share) addEntries(n int) {
	if s != nil {
		s.entries = uint32(int(s.entries) + n)
	}
}

func (s *share) addBackends(n int) {
	if s != nil {
		s.backends = uint32(int(s.backends) + n)
	}
}

func (s *share) addSlots(n int) {
	if s != nil {
		s.slots = uint32(int(s.slots) + n)
	}
}

func (s *share) addQuarantined(n int) {
	if s != nil {
		s.quarantined = uint32(int(s.quarantined) + n)
	}
}

// claim assigns the existing entries of a row to its share.
func (f *inForce) claim(p *plan) {
	p.owner = f.shares.of(p.row.Service)
	for _, scope := range scopes(p.row) {
		e := f.entries[p.keyOf(scope)]
		if e == nil || e.owner == p.owner {
			continue
		}
		n := len(f.slots.list(e))
		e.owner.addEntries(-1)
		e.owner.addSlots(-n)
		e.owner = p.owner
		e.owner.addEntries(1)
		e.owner.addSlots(n)
	}
}

// claimBackend assigns an existing backend to a share.
func (b *backend) claimBackend(owner *share) {
	b.owner.addBackends(-1)
	b.owner = owner
	b.owner.addBackends(1)
}
