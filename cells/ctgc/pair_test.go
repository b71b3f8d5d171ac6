package ctgc

import (
	"testing"

	"github.com/waggle-net/waggle/pkg/natmap"
)

// renewing is a kernel in which a packet of the initiator comes right before an entry of the first direction is deleted.
type renewing struct{ fakeNat }

func (r renewing) DeleteNat(key *natmap.Key, dead func(*natmap.Flow) bool) (bool, error) {
	r.mu.Lock()
	if flow := r.nat[*key]; !flow.Reply() {
		flow.Expires = r.now + 100
		r.nat[*key] = flow
	}
	r.mu.Unlock()
	return r.fakeNat.DeleteNat(key, dead)
}

// The entry that translates replies stays as long as a packet of the initiator may still be translated.
func TestDeletePair_RepliesStayWithTheirFlow(t *testing.T) {
	t.Parallel()
	for _, renewed := range []bool{true, false} {
		s := newSharing(t)
		s.translate(false, 1000, 1)
		s.fake.now += 1 << 20 // all is over
		if renewed {
			s.nat = renewing{fakeNat{s.fake}}
		}
		s.pass()
		if left := len(s.fake.nat); left != map[bool]int{true: 2, false: 0}[renewed] {
			t.Errorf("renewed %v: %d entries are left", renewed, left)
		}
	}
}
