package ipcache

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"

	"github.com/cilium/statedb"

	ipcachetable "github.com/waggle-net/waggle/pkg/tables/ipcache"
)

// ops pushes rows into the maps.
type ops struct{ kernel kernel }

func newOps(k kernel) *ops { return &ops{k} }

// Update implements reconciler.Operations.
func (o *ops) Update(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, e *ipcachetable.Entry) error {
	if err := o.kernel.Put(e.Prefix, valueOf(e)); err != nil {
		return fmt.Errorf("write %s to the map ipcache: %w", e.Prefix, err)
	}
	return nil
}

// Delete implements reconciler.Operations.
func (o *ops) Delete(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, e *ipcachetable.Entry) error {
	if err := o.kernel.Delete(e.Prefix); err != nil {
		return fmt.Errorf("delete %s from the map ipcache: %w", e.Prefix, err)
	}
	return nil
}

// Prune implements reconciler.Operations. All entries of the two maps are ours.
func (o *ops) Prune(_ context.Context, _ statedb.ReadTxn, rows iter.Seq2[*ipcachetable.Entry, statedb.Revision]) error {
	have, err := o.kernel.Dump()
	if err != nil {
		return fmt.Errorf("read the map ipcache: %w", err)
	}
	for e := range rows {
		delete(have, e.Prefix)
	}
	var errs []error
	for prefix := range have {
		if err := o.kernel.Delete(prefix); err != nil {
			errs = append(errs, fmt.Errorf("delete %s from the map ipcache: %w", prefix, err))
		}
	}
	return errors.Join(errs...)
}

// value is what the maps say of a prefix.
type value struct {
	Identity   uint32
	TunnelPeer netip.Addr // IPv4 or invalid
}

func valueOf(e *ipcachetable.Entry) value { return value{e.Identity, e.TunnelPeer} }
