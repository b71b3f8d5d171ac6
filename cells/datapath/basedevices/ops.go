package basedevices

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"golang.org/x/time/rate"

	"github.com/waggle-net/waggle/pkg/tables/desireddevices"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

func registerReconciler(params reconciler.Params, table statedb.RWTable[*desireddevices.Device], o *ops) error {
	_, err := watchdog.Register(params, table,
		(*desireddevices.Device).Clone, (*desireddevices.Device).WithStatus, (*desireddevices.Device).GetStatus, o, nil,
		reconciler.WithName("devices"),
		reconciler.WithRefreshing(0, nil), // the repair job finds drift in the observed tables
		reconciler.WithoutPruning(),       // no row is ever deleted
		reconciler.WithRetry(100*time.Millisecond, 10*time.Second),
		reconciler.WithRoundLimits(10, rate.NewLimiter(1000, 1)),
	)
	return err
}

// ops creates and configures pairs of links.
type ops struct {
	kernel kernel
	// known has the indexes of ends that this run has identified as its own, by name, so that a renamed end is found.
	known map[string]int
}

func newOps(k kernel) *ops { return &ops{kernel: k, known: make(map[string]int)} }

// Update implements reconciler.Operations: it creates missing links, changes properties that differ, and leaves others unchanged.
func (o *ops) Update(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, d *desireddevices.Device) error {
	have, err := o.ensurePair(d)
	if err != nil {
		return fmt.Errorf("create device %s: %w", d.Name, err)
	}
	var errs []error
	want := end{MTU: d.MTU, Up: d.Up, NoARP: true}
	for _, name := range []string{d.Name, d.Peer} {
		if err := o.kernel.Set(name, want); err != nil {
			errs = append(errs, fmt.Errorf("set up device %s: %w", name, err))
		}
	}
	return errors.Join(append(errs, o.addresses(d, have.Addresses))...)
}

// ensurePair returns the first end of the pair, which it creates if it is missing. It returns an error for a foreign link with the name.
func (o *ops) ensurePair(d *desireddevices.Device) (end, error) {
	if err := o.nameBack(d.Name, d.Peer); err != nil {
		return end{}, err
	}
	have, found, err := o.kernel.Get(d.Name)
	if err != nil {
		return end{}, err
	}
	if !found {
		if err := o.kernel.Create(d.Name, d.Peer); err != nil {
			return end{}, err
		}
		if have, _, err = o.kernel.Get(d.Name); err != nil {
			return end{}, err
		}
	}
	peer, found, err := o.kernel.Get(d.Peer)
	switch {
	case err != nil:
		return end{}, err
	case have.Type != "veth":
		return end{}, fmt.Errorf("a %s has this name: rename or delete it", have.Type)
	case !found || peer.Index != have.PeerIndex:
		return end{}, fmt.Errorf("it exists, but its peer is not %s: rename or delete it", d.Peer)
	}
	o.known[d.Name], o.known[d.Peer] = have.Index, peer.Index
	return have, nil
}

// nameBack restores the names of renamed ends.
func (o *ops) nameBack(names ...string) error {
	for _, name := range names {
		index, known := o.known[name]
		if !known {
			continue
		}
		if _, found, err := o.kernel.Get(name); err != nil || found {
			continue // the caller gets the same error
		}
		if err := o.kernel.Rename(index, name); err != nil {
			return fmt.Errorf("rename the link with index %d back to %s: %w", index, name, err)
		}
	}
	return nil
}

// addresses adds missing addresses before it removes others, so that the node always has an address.
func (o *ops) addresses(d *desireddevices.Device, have []netip.Prefix) error {
	var errs []error
	for _, a := range d.Addresses {
		if slices.Contains(have, a) {
			continue
		}
		if err := o.kernel.AddAddress(d.Name, a); err != nil {
			errs = append(errs, fmt.Errorf("add address %s to %s: %w", a, d.Name, err))
		}
	}
	if !d.AddressesKnown || len(errs) > 0 {
		return errors.Join(errs...)
	}
	for _, a := range have {
		if slices.Contains(d.Addresses, a) {
			continue
		}
		if err := o.kernel.DeleteAddress(d.Name, a); err != nil {
			errs = append(errs, fmt.Errorf("remove address %s from %s: %w", a, d.Name, err))
		}
	}
	return errors.Join(errs...)
}

// Delete implements reconciler.Operations. No row is ever deleted: the links outlive the agent.
func (o *ops) Delete(context.Context, statedb.ReadTxn, statedb.Revision, *desireddevices.Device) error {
	return nil
}

// Prune implements reconciler.Operations and is never called.
func (o *ops) Prune(context.Context, statedb.ReadTxn, iter.Seq2[*desireddevices.Device, statedb.Revision]) error {
	return nil
}
