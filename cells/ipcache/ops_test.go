package ipcache

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"

	ipcachetable "github.com/waggle-net/waggle/pkg/tables/ipcache"
)

func batchOf(identity uint32, prefixes ...string) (batch []reconciler.BatchEntry[*ipcachetable.Entry]) {
	for _, p := range prefixes {
		batch = append(batch, reconciler.BatchEntry[*ipcachetable.Entry]{
			Object: &ipcachetable.Entry{Prefix: netip.MustParsePrefix(p), Identity: identity}})
	}
	return batch
}

// Established flows are judged again after each real change, once for a batch, and not without one.
func TestOps_EachBatchRaisesTheEpochOnce(t *testing.T) {
	t.Parallel()
	f := newFake()
	o := newOps(f)
	update := func(identity uint32, prefixes ...string) error {
		batch := batchOf(identity, prefixes...)
		o.UpdateBatch(t.Context(), nil, batch)
		return batch[0].Result
	}
	f.entries[netip.MustParsePrefix("10.0.0.1/32")] = value{Identity: 300}
	require.NoError(t, update(300, "10.0.0.1/32"))
	require.Equal(t, 1, f.epoch, "an earlier run may have ended between a change and its epoch")
	require.NoError(t, update(300, "10.0.0.1/32"))
	require.Equal(t, 1, f.epoch, "nothing has changed")
	require.NoError(t, update(301, "10.0.0.1/32", "10.0.0.2/32", "10.1.0.0/16"))
	require.Equal(t, 2, f.epoch)

	// A batch whose epoch cannot be raised has not succeeded, although its entries stand; the next attempt makes up for it.
	refuse := &refusingEpoch{fakeMaps: f, times: 1}
	o.kernel = refuse
	require.ErrorContains(t, update(302, "10.0.0.1/32"), "raise the epoch")
	require.Equal(t, 2, f.epoch)
	require.NoError(t, update(302, "10.0.0.1/32"))
	require.Equal(t, 3, f.epoch)

	batch := batchOf(0, "10.0.0.1/32", "10.0.0.2/32")
	o.DeleteBatch(t.Context(), nil, batch)
	require.NoError(t, batch[0].Result)
	require.Equal(t, 4, f.epoch)
	require.NoError(t, o.Prune(t.Context(), nil, func(func(*ipcachetable.Entry, uint64) bool) {}))
	require.Equal(t, 5, f.epoch)
	require.Empty(t, f.entries)
	require.NoError(t, o.Prune(t.Context(), nil, func(func(*ipcachetable.Entry, uint64) bool) {}))
	require.Equal(t, 5, f.epoch)
}

// refusingEpoch fails to raise the epoch some times.
type refusingEpoch struct {
	*fakeMaps
	times int
}

func (r *refusingEpoch) Raise() error {
	if r.times > 0 {
		r.times--
		return errors.New("full, says the test")
	}
	return r.fakeMaps.Raise()
}
