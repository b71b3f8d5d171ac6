package overlay

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/waggle-net/waggle/pkg/mac"
	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/tables/overlays"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// pruneInterval is the interval of the scans for a leftover device. A start prunes at once; a later scan repeats one that failed.
const pruneInterval = time.Minute

func registerReconciler(params reconciler.Params, table statedb.RWTable[*overlays.Overlay], o *ops) error {
	_, err := watchdog.Register(params, table,
		(*overlays.Overlay).Clone, (*overlays.Overlay).WithStatus, (*overlays.Overlay).GetStatus, o, nil,
		reconciler.WithName("tunnel"),
		reconciler.WithRefreshing(0, nil), // the repair job finds differences in the observed table
		reconciler.WithPruning(pruneInterval),
		// Most failures last until an operator removes another device; a minute would be too long for the operator.
		reconciler.WithRetry(100*time.Millisecond, 10*time.Second),
		reconciler.WithRoundLimits(10, rate.NewLimiter(1000, 1)),
	)
	return err
}

// ops maintains the tunnel device and publishes it to programs.
type ops struct{ kernel kernel }

func newOps(k kernel) *ops { return &ops{k} }

// Update implements reconciler.Operations. It publishes the device last, and only while it is up: packets that programs send into a device that is down are
// lost without a drop reason.
func (o *ops) Update(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, row *overlays.Overlay) error {
	have, created, err := o.ensure(row)
	if err != nil {
		return fmt.Errorf("create device %s: %w", row.Device, err)
	}
	up := row.Up && !created // a new device needs its program attached first
	if err := o.kernel.Set(row.Device, device{Group: podlink.OverlayGroup, MAC: row.MAC, MTU: row.MTU, Up: up}); err != nil {
		if errors.Is(err, unix.EADDRINUSE) {
			err = o.taken(row)
		}
		return fmt.Errorf("set up device %s: %w", row.Device, err)
	}
	index := 0
	if up || have.Up {
		index = have.Index
	}
	if err := o.kernel.Publish(index, row); err != nil {
		return fmt.Errorf("write device %s to the map overlay: %w", row.Device, err)
	}
	if !row.Checksums {
		return o.uncomplete()
	}
	if err := o.kernel.Complete(row.MTU, row.ChecksumsUp); err != nil {
		return fmt.Errorf("create device %s: %w", podlink.ChecksumDevice, err)
	}
	return nil
}

// uncomplete deletes the pair that completes checksums.
func (o *ops) uncomplete() error {
	if err := o.kernel.EndCompletion(); err != nil {
		return fmt.Errorf("delete device %s: %w", podlink.ChecksumDevice, err)
	}
	return nil
}

// ensure returns the device, and whether it is new. It creates a device of a previous run with another port again; a foreign device is an error. Before it creates
// a device, it clears the published one: programs would send into an index that no longer exists until the creation succeeds.
func (o *ops) ensure(row *overlays.Overlay) (_ device, created bool, _ error) {
	have, found, err := o.kernel.Get(row.Device)
	switch {
	case err != nil:
		return device{}, false, err
	case found && !have.ours(row.MAC):
		return device{}, false, fmt.Errorf("a foreign %s has this name: rename or delete it", have.Type)
	case found && have.Port == row.Port:
		return have, false, nil
	}
	if err := o.kernel.Publish(0, row); err != nil {
		return device{}, false, fmt.Errorf("clear the map overlay: %w", err)
	}
	if found {
		if err := o.kernel.Delete(row.Device); err != nil {
			return device{}, false, err
		}
	}
	if err := o.kernel.Create(row.Device, row.Port, row.MAC); errors.Is(err, unix.EEXIST) || errors.Is(err, unix.EADDRINUSE) {
		return device{}, false, o.taken(row)
	} else if err != nil {
		return device{}, false, err
	}
	have, _, err = o.kernel.Get(row.Device)
	return have, true, err
}

// taken returns an error that names the user of the port.
func (o *ops) taken(row *overlays.Overlay) error {
	who, err := o.kernel.PortOwner(row.Port, row.Device)
	if who == "" {
		who = "another device or process"
	}
	return errors.Join(fmt.Errorf("%s has UDP port %d: remove it, or set --tunnel-port to another port on all nodes", who, row.Port), err)
}

// Delete implements reconciler.Operations.
func (o *ops) Delete(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, row *overlays.Overlay) error {
	return o.remove(row.Device, row.MAC)
}

// Prune implements reconciler.Operations.
func (o *ops) Prune(_ context.Context, _ statedb.ReadTxn, rows iter.Seq2[*overlays.Overlay, statedb.Revision]) error {
	for range rows {
		return nil // there is one device, and its row exists
	}
	return o.remove(podlink.OverlayDevice, mac.Addr{})
}

// remove deletes the device of that name if an agent created it. The MAC may be zero.
func (o *ops) remove(name string, addr mac.Addr) error {
	if err := o.kernel.Publish(0, &overlays.Overlay{}); err != nil {
		return fmt.Errorf("clear the map overlay: %w", err)
	}
	have, found, err := o.kernel.Get(name)
	if err == nil && found && have.ours(addr) {
		err = o.kernel.Delete(name)
	}
	if err != nil {
		err = fmt.Errorf("delete device %s: %w", name, err)
	}
	return errors.Join(err, o.uncomplete())
}
