package identityallocator

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/printable"
	"github.com/waggle-net/waggle/pkg/tables/identities"
)

// memory assigns numbers without Kubernetes. They are in the range of a cluster but valid on this node only; when the range is full, it assigns provisional
// numbers.
type memory struct{ numbers *numbers }

// choose implements backend.
func (m *memory) choose(_ statedb.ReadTxn, in input, key string, s set, _ time.Time) choice {
	out := m.numbers.own(key, s, identities.Memory)
	if !errors.Is(out.problem, errFull) {
		return out
	}
	why := fmt.Errorf("%w: %s", out.problem, in.blame())
	out = m.numbers.own(key, s, identities.Provisional)
	out.problem = errors.Join(fmt.Errorf("%s: %w", printable.Short(key, longestName), why), out.problem)
	out.why = why.Error()
	return out
}
