package endpointmaps

import (
	"testing"

	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
)

// factsBatch returns a batch of the reconciler for n endpoints with different identities.
func factsBatch(n int, first uint32) (batch []reconciler.BatchEntry[*bpfendpoints.Facts]) {
	for i := range n {
		batch = append(batch, reconciler.BatchEntry[*bpfendpoints.Facts]{Object: &bpfendpoints.Facts{ID: uint16(i + 1),
			IfIndex: uint32(i + 1), Identity: first + uint32(i)}})
	}
	return batch
}

// A packet that reads the new slot of one endpoint and the old slot of another may be dropped: all slots are written in one call.
func TestUpdateBatch_OneWriteForAll(t *testing.T) {
	t.Parallel()
	fake := newFake()
	ops := factsOps{fakeSlots{fake}}
	ops.UpdateBatch(t.Context(), nil, factsBatch(3, 300))
	require.Equal(t, 2, fake.writes, "each write is repeated once")

	// In a batch with one slot that is already equal, only the others are written.
	batch := factsBatch(3, 400)
	batch[1].Object.Identity = 301
	ops.UpdateBatch(t.Context(), nil, batch)
	require.Equal(t, 4, fake.writes)
	for id, want := range map[uint16][2]uint32{1: {400, 4}, 2: {301, 2}, 3: {402, 4}} { // identity and revision
		require.Equal(t, want, [2]uint32{fake.facts[id].Identity, fake.facts[id].Revision}, "endpoint %d", id)
	}
	ops.UpdateBatch(t.Context(), nil, batch)
	require.Equal(t, 4, fake.writes)
}

func TestUpdateBatch_FailureOfOneDelaysNoOther(t *testing.T) {
	t.Parallel()
	fake := newFake()
	fake.failures = 2 // the write of all slots, and the write of the first one
	batch := factsBatch(2, 300)
	factsOps{fakeSlots{fake}}.UpdateBatch(t.Context(), nil, batch)
	require.ErrorContains(t, batch[0].Result, "write facts of endpoint 1: no memory")
	require.NoError(t, batch[1].Result)
	require.Equal(t, uint32(301), fake.facts[2].Identity)
}
