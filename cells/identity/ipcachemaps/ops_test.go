package ipcachemaps

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
)

func batchOf(identity uint32, prefixes ...string) (batch []reconciler.BatchEntry[*ipcache.Entry]) {
	for _, p := range prefixes {
		batch = append(batch, reconciler.BatchEntry[*ipcache.Entry]{
			Object: ipcache.NewEntry(ipcache.Claim{Prefix: netip.MustParsePrefix(p), Identity: identity}, "")})
	}
	return batch
}

func newUpdates(t *testing.T) (f *fakeMaps, o *ops, update func(identity uint32, prefixes ...string) error) {
	f = newFake()
	o = newOps(f, nodeLookup{}, func() bool { return true })
	return f, o, func(identity uint32, prefixes ...string) error {
		batch := batchOf(identity, prefixes...)
		o.UpdateBatch(t.Context(), nil, batch)
		return batch[0].Result
	}
}

func shard(addr string) uint32 { return bpf.EpochShard(netip.MustParseAddr(addr)) }

// A batch that changes addresses raises their epochs once, so that established flows with these addresses are evaluated again. A batch without a change raises
// none.
func TestOps_EachBatchRaisesEpochsOnce(t *testing.T) {
	t.Parallel()
	f, o, update := newUpdates(t)
	f.entries[netip.MustParsePrefix("10.0.0.1/32")] = value{Identity: 300}
	require.NoError(t, update(300, "10.0.0.1/32"))
	require.Equal(t, 1, f.epoch, "an earlier run may have ended between a change and its epoch")
	require.NoError(t, update(300, "10.0.0.1/32"))
	require.Equal(t, 1, f.epoch, "nothing has changed")
	require.NoError(t, update(301, "10.0.0.1/32", "fd00::2/128"))
	require.Equal(t, map[uint32]int{shard("10.0.0.1"): 1, shard("fd00::2"): 1}, f.shards)
	require.NoError(t, update(301, "10.0.0.1/32", "10.1.0.0/16"))
	require.Equal(t, 2, f.epoch, "a prefix has many addresses")

	batch := batchOf(0, "10.0.0.1/32")
	o.DeleteBatch(t.Context(), nil, batch)
	require.NoError(t, batch[0].Result)
	require.Equal(t, 2, f.shards[shard("10.0.0.1")])
	require.NoError(t, o.Prune(t.Context(), nil, func(func(*ipcache.Entry, uint64) bool) {}))
	require.Equal(t, 3, f.epoch)
	require.Empty(t, f.entries)
	require.NoError(t, o.Prune(t.Context(), nil, func(func(*ipcache.Entry, uint64) bool) {}))
	require.Equal(t, 3, f.epoch)
}

// A batch whose epochs cannot be raised has failed although its entries are written. The next attempt raises the epochs.
func TestOps_FailedEpochs_AreRaisedLater(t *testing.T) {
	t.Parallel()
	f, o, update := newUpdates(t)
	require.NoError(t, update(300, "10.0.0.1/32"))
	o.kernel = &refusingEpoch{fakeMaps: f, times: 1}
	require.ErrorContains(t, update(302, "10.0.0.1/32"), "raise epochs")
	require.Empty(t, f.shards)
	require.NoError(t, update(302, "10.0.0.1/32"))
	require.Equal(t, map[uint32]int{shard("10.0.0.1"): 1}, f.shards)
}

// Programs of the previous generation do not read shards, and raising very many shards would take longer than evaluating all flows again.
func TestOps_AllFlowsInPlaceOfShards(t *testing.T) {
	t.Parallel()
	f, o, update := newUpdates(t)
	require.NoError(t, update(300, "10.0.0.1/32"))
	o.replaced = func() bool { return false }
	require.NoError(t, update(301, "10.0.0.1/32"))
	require.Equal(t, 2, f.epoch)
	o.replaced = func() bool { return true }
	var many []string
	for i := range 2 * mostShards {
		many = append(many, fmt.Sprintf("10.1.%d.%d/32", i/256, i%256))
	}
	require.NoError(t, update(300, many...))
	require.Equal(t, 3, f.epoch)
	require.Empty(t, f.shards)
}

// refusingEpoch fails to raise epochs a number of times.
type refusingEpoch struct {
	*fakeMaps
	times int
}

func (r *refusingEpoch) Raise(shards []uint32) error {
	if r.times > 0 {
		r.times--
		return errors.New("full, says the test")
	}
	return r.fakeMaps.Raise(shards)
}
