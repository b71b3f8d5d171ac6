package endpointmaps

import (
	"testing"

	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
)

// factsBatch is what the reconciler hands over of so many endpoints, each known by an identity that is told from the others.
func factsBatch(n int, first uint32) (batch []reconciler.BatchEntry[*bpfendpoints.Facts]) {
	for i := range n {
		batch = append(batch, reconciler.BatchEntry[*bpfendpoints.Facts]{Object: &bpfendpoints.Facts{ID: uint16(i + 1),
			IfIndex: uint32(i + 1), Identity: first + uint32(i)}})
	}
	return batch
}

// Packets that meet one endpoint as it is now and another as it was are lost: all slots are written together.
func TestUpdateBatch_OneWriteForAll(t *testing.T) {
	t.Parallel()
	fake := newFake()
	ops := factsOps{fakeSlots{fake}}
	ops.UpdateBatch(t.Context(), nil, factsBatch(3, 300))
	require.Equal(t, 2, fake.writes, "each write is repeated once")

	// Of those of which one is as it was already, the others are written.
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
	fake.failures = 2 // of all at once, and of the first of them
	batch := factsBatch(2, 300)
	factsOps{fakeSlots{fake}}.UpdateBatch(t.Context(), nil, batch)
	require.ErrorContains(t, batch[0].Result, "write facts of endpoint 1: no memory")
	require.NoError(t, batch[1].Result)
	require.Equal(t, uint32(301), fake.facts[2].Identity)
}
