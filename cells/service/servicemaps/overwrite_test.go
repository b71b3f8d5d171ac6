package servicemaps

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/bpf"
)

// An entry without slots has the number of the first slot of another entry. When it is replaced, overwritten backends of the other one stay in their map.
func TestRetire_EntryWithoutSlots_ReleasesNoOtherBackends(t *testing.T) {
	t.Parallel()
	a := newAgent(t, newFakes(20, 40, 0))
	known, now := a.writer.known, time.Unix(1000, 0)
	known.slots.displaced[0] = []uint32{7}
	known.slots.refer([]uint32{7}, 1)
	known.retire(&entry{owner: known.unclaimed, ours: true}, 0, 0, now)
	known.release(now.Add(2*quarantine), func(uint32) {})
	require.Equal(t, int32(1), known.slots.refs[7])

	known.retire(&entry{owner: known.unclaimed, ours: true, value: bpf.Service{Count: 1}}, 1, 0, now)
	known.release(now.Add(2*quarantine), func(uint32) {})
	require.Zero(t, known.slots.refs[7])
}
