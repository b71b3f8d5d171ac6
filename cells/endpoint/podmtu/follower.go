package podmtu

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/podns"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/mtus"
	"github.com/waggle-net/waggle/pkg/tables/podmtus"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

const (
	settle   = 20 * time.Millisecond // combines a burst of changes into one pass
	minRetry = 100 * time.Millisecond
	maxRetry = time.Minute

	maxFailures = 3 // maximum number of pods in a health message
)

type params struct {
	cell.In

	Config    Config
	Kernel    kernel
	Record    *record
	DB        *statedb.DB
	Table     statedb.RWTable[podmtus.PodMTU]
	MTUs      statedb.Table[mtus.MTU]
	Endpoints statedb.Table[*endpoints.Endpoint]
	Devices   statedb.Table[*devices.Device]
}

// follower visits the pods whose MTU may differ from the MTU of the node: all pods after a change, and each new one. A pod with the desired MTU costs nothing.
type follower struct{ params }

func (f *follower) run(ctx context.Context, health cell.Health) error {
	health.OK("waiting for the MTU of the node")
	retry := minRetry
	var last size
	follows := []statedb.TableMeta{f.MTUs}
	if f.Config.Enabled {
		follows = append(follows, f.Endpoints)
	}
	return loop.Run(ctx, f.DB, loop.Options{Tables: follows, Settle: settle}, func(r *loop.Round) error {
		r.Watch(follows...)
		open := false
		if row, _, known := f.MTUs.Get(r.Txn, mtus.ByPrefix(mtus.Default)); known {
			want := sizeOf(row)
			if want != last {
				last, retry = want, minRetry
			}
			if err := f.Record.add(want); err != nil {
				return err
			}
			switch {
			case !f.Config.Enabled:
				health.OK("running pods keep the MTU that they were attached with: --enable-pod-mtu-updates is off")
			case row.Provisional:
				health.OK("running pods keep their MTU until the device that determines the MTU is known")
			default:
				if f.pass(ctx, r.Txn, want) {
					retry = minRetry
				}
				open = f.report(want, health)
			}
		}

		if open {
			r.Within(retry)
			retry = min(2*retry, maxRetry)
		}
		return nil
	})
}

// pass runs both stages for all pods without the desired size. It reports whether any of them is new.
func (f *follower) pass(ctx context.Context, txn statedb.ReadTxn, want size) (fresh bool) {
	due, fresh := f.due(txn, want)
	due = f.visitAll(ctx, due, want, visit.prepare)
	if sends := f.nodeSends(want); sends != "" {
		for _, ep := range due {
			f.put(ep, want, podmtus.Waiting, fmt.Sprintf("%v: %s", errWaiting, sends), 0)
		}
		return fresh
	}
	for _, ep := range f.visitAll(ctx, due, want, visit.complete) {
		f.put(ep, want, podmtus.Follows, "", want.Device)
	}
	return fresh
}

// visitAll runs one stage for pods, and returns the pods for which it succeeded. A failure in one pod does not affect others, unless the agent lacks
// a capability, which affects all pods.
func (f *follower) visitAll(ctx context.Context, due []*endpoints.Endpoint, want size, stage func(visit) error) (done []*endpoints.Endpoint) {
	for _, ep := range due {
		watchdog.Busy(ctx)
		err := f.visit(ep, want, stage)
		if errors.Is(err, unix.EPERM) {
			return nil
		}
		if err == nil {
			done = append(done, ep)
		}
	}
	return done
}

// due lists the endpoints without a final row for this size, and reports whether any of them has no row at all. It deletes the rows of
// removed endpoints.
func (f *follower) due(txn statedb.ReadTxn, want size) (due []*endpoints.Endpoint, fresh bool) {
	wtxn := f.DB.WriteTxn(f.Table)
	defer wtxn.Commit()
	for row := range f.Table.All(wtxn) {
		if ep, _, found := f.Endpoints.Get(txn, endpoints.ByID(row.ID)); !found || ep.HostIfIndex != row.HostIfIndex {
			_, _, _ = f.Table.Delete(wtxn, row)
		}
	}
	for ep := range f.Endpoints.All(txn) {
		row, _, found := f.Table.Get(wtxn, podmtus.ByID(ep.ID))
		done := found && want == (size{row.DeviceMTU, row.RouteMTU}) && (row.State == podmtus.Follows || row.State == podmtus.ByHand || row.State == podmtus.Gone)
		if !done && ep.Quarantine == "" { // the endpoint manager reports the fault of these endpoints
			due, fresh = append(due, ep), fresh || !found
		}
	}
	return due, fresh
}

// nodeSends returns why links of pods must not be lowered yet: packets from the node to pods pass the device waggle_host, which another cell lowers.
func (f *follower) nodeSends(want size) string {
	for d := range f.Devices.List(f.DB.ReadTxn(), devices.ByName(podlink.HostDevice)) {
		if d.MTU > want.Device {
			return fmt.Sprintf("%s still has an MTU of %d", d.Name, d.MTU)
		}
	}
	return ""
}

// visit runs one stage for one pod, and writes its row after a failure.
func (f *follower) visit(ep *endpoints.Endpoint, want size, stage func(visit) error) error {
	err := f.stage(ep, want, stage)
	state := podmtus.Failed
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errByHand):
		state = podmtus.ByHand
	case errors.Is(err, errWaiting):
		state = podmtus.Waiting
	case errors.Is(err, podns.ErrGone):
		state = podmtus.Gone
	}
	f.put(ep, want, state, strings.ReplaceAll(err.Error(), "\n", "; "), 0)
	return err
}

func (f *follower) stage(ep *endpoints.Endpoint, want size, stage func(visit) error) error {
	if ep.NetnsPath == "" || ep.NetnsInode == 0 {
		return fmt.Errorf("%w: its path is not known", podns.ErrGone)
	}
	pod, err := f.Kernel.Open(ep)
	if err != nil {
		return err
	}
	defer pod.Close()
	return stage(visit{pod, ep, want, f.Record, func() { f.put(ep, want, podmtus.Waiting, "", want.Device) }})
}

// put writes the row of an endpoint. If host is 0, the last MTU of the host end stays.
func (f *follower) put(ep *endpoints.Endpoint, want size, state podmtus.State, detail string, host int) {
	txn := f.DB.WriteTxn(f.Table)
	defer txn.Abort()
	had, _, found := f.Table.Get(txn, podmtus.ByID(ep.ID))
	if host == 0 {
		host = had.HostMTU
	}
	row := podmtus.PodMTU{ID: ep.ID, Pod: ep.PodName(), HostIfIndex: ep.HostIfIndex, HostMTU: host, DeviceMTU: want.Device,
		RouteMTU: want.Route, State: state, Detail: detail}
	if !found || had != row {
		_, _, _ = f.Table.Insert(txn, row)
		txn.Commit()
	}
}

// report sets the health from the rows, and reports whether any pod must be visited again.
func (f *follower) report(want size, health cell.Health) (open bool) {
	counts := map[podmtus.State]int{}
	var errs []error
	for row := range f.Table.All(f.DB.ReadTxn()) {
		if counts[row.State]++; row.State == podmtus.Failed && len(errs) < maxFailures {
			errs = append(errs, fmt.Errorf("endpoint %d: %s", row.ID, row.Detail))
		}
	}
	if failed := counts[podmtus.Failed]; failed > 0 {
		if failed > maxFailures {
			errs = append(errs, fmt.Errorf("and %d more", failed-maxFailures))
		}
		health.Degraded(fmt.Sprintf("pods may keep another MTU than %d, or than %d for routes", want.Device, want.Route), errors.Join(errs...))
		return true
	}
	health.OK(fmt.Sprintf("%d pods have an MTU of %d, and %d for routes; %d have an MTU that was set by hand, %d are gone, %d not ready",
		counts[podmtus.Follows], want.Device, want.Route, counts[podmtus.ByHand], counts[podmtus.Gone], counts[podmtus.Waiting]))
	return counts[podmtus.Waiting] > 0
}
