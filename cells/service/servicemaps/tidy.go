package servicemaps

import (
	"fmt"
	"time"

	"github.com/waggle-net/waggle/bpf"
)

// leave removes entries without a row. An internal entry stays while the external entry refers to it.
func (w *writer) leave(now time.Time) {
	for _, scope := range []uint8{bpf.ScopeExternal, bpf.ScopeInternal} {
		var keys []bpf.ServiceKey
		for key := range w.left.leaving {
			external := key
			external.Scope = bpf.ScopeExternal
			refers := w.known.entries[external] != nil && w.known.entries[external].value.Flags&bpf.ServiceTwoScopes != 0
			if key.Scope == scope && !(scope == bpf.ScopeInternal && refers) {
				keys = append(keys, key)
			}
		}
		remove(w.maps.Services, keys, func(key bpf.ServiceKey, err error) {
			if err != nil {
				w.left.leaving[key] = fmt.Errorf("remove %s: %w", bpf.AddressOfService(key), err)
				return
			}
			w.known.retire(w.known.entries[key], 0, 0, now)
			w.known.entries[key].owner.entries--
			w.known.freed |= capacityOf(bpf.MapServices)
			delete(w.known.entries, key)
			delete(w.left.leaving, key)
		})
	}
}

// unused are the members and ranges that frontends no longer use.
type unused struct {
	members []bpf.AffinityMember
	fewer   writes[bpf.AffinityMember, uint32, struct{}] // members that lose a scope
	ranges  []bpf.SourceRangeKey
}

// add adds the unused members and ranges of a frontend.
func (u *unused) add(id uint32, b *belongings) {
	for backend, m := range b.members {
		switch key := (bpf.AffinityMember{Service: id, Backend: backend}); {
		case m.wants == 0:
			u.members = append(u.members, key)
		case m.wants != m.has:
			u.fewer.add(struct{}{}, key, m.wants)
		}
	}
	for r, wanted := range b.ranges {
		if !wanted && b.held == 0 && !b.unsettled {
			u.ranges = append(u.ranges, bpf.NewSourceRangeKey(id, r))
		}
	}
}

// tidy removes members and ranges that frontends no longer use.
func (w *writer) tidy() {
	var u unused
	for id := range w.left.untidy {
		b := w.known.holdings.of[id]
		if b == nil {
			delete(w.left.untidy, id)
			continue
		}
		w.left.untidy[id] = nil
		u.add(id, b)
	}
	w.removeParts(&u)
	for id, err := range w.left.untidy {
		if err == nil {
			delete(w.left.untidy, id)
			if w.known.holdings.of[id].empty() {
				delete(w.known.holdings.of, id)
			}
		}
	}
}

// removeParts removes members and ranges from their maps.
func (w *writer) removeParts(u *unused) {
	u.fewer.put(w.maps.Members, func(_ struct{}, m bpf.AffinityMember, scopes uint32, err error) {
		if w.known.holdings.recordScopes(m, scopes, err); err != nil {
			w.left.untidy[m.Service] = err
		}
	})
	remove(w.maps.Members, u.members, func(m bpf.AffinityMember, err error) {
		if err != nil {
			w.left.untidy[m.Service] = err
			return
		}
		w.known.holdings.strikeMember(m)
		w.known.freed |= capacityOf(bpf.MapAffinityMembers)
	})
	remove(w.maps.Ranges, u.ranges, func(r bpf.SourceRangeKey, err error) {
		if err != nil {
			w.left.untidy[r.Service] = err
			return
		}
		w.known.holdings.strikeRange(r)
		w.known.freed |= capacityOf(bpf.MapSourceRanges)
	})
}
