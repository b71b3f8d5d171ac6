package routereconciler

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/desiredroutes"
)

// ops writes rows to the kernel.
type ops struct {
	kernel kernel
	// pruned receives the outcome of each Prune, because the reconciler does not retry a failed one.
	pruned chan error
}

func newOps(k kernel) *ops { return &ops{kernel: k, pruned: make(chan error, 1)} }

// Update implements reconciler.Operations.
func (o *ops) Update(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, row *desiredroutes.Route) error {
	link, err := o.kernel.LinkIndex(row.Device)
	if err != nil {
		return fmt.Errorf("add route %s dev %s: %w", row.Dst, row.Device, err)
	}
	want := wanted(row, link)
	err = o.kernel.Create(want)
	if errors.Is(err, errExists) {
		err = o.takeOver(want)
	}
	if err != nil {
		return fmt.Errorf("add route %s dev %s: %w", row.Dst, row.Device, err)
	}
	return nil
}

// takeOver updates an existing route to the desired one if the agent owns it.
func (o *ops) takeOver(want route) error {
	all, err := o.kernel.List()
	if err != nil {
		return err
	}
	for _, have := range all {
		if have.Table != want.Table || have.Dst != want.Dst || have.Priority != want.Priority {
			continue
		}
		if have.Protocol != desiredroutes.Protocol {
			return fmt.Errorf("a route of protocol %d with this destination and metric exists: remove it, or choose another --route-metric or pod CIDR",
				have.Protocol)
		}
		if have == want {
			return nil
		}
	}
	return o.kernel.Replace(want)
}

// Delete implements reconciler.Operations.
func (o *ops) Delete(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, row *desiredroutes.Route) error {
	if err := o.kernel.Delete(wanted(row, 0)); err != nil {
		return fmt.Errorf("delete route %s dev %s: %w", row.Dst, row.Device, err)
	}
	return nil
}

// Prune implements reconciler.Operations. It removes every owned route without a row. A route whose destination has a row with another metric stays until the
// kernel has a route of such a row, so that packets always have a route.
func (o *ops) Prune(_ context.Context, _ statedb.ReadTxn, rows iter.Seq2[*desiredroutes.Route, statedb.Revision]) error {
	err := o.prune(rows)
	select {
	case <-o.pruned: // unread outcome of an earlier prune; the new one replaces it
	default:
	}
	o.pruned <- err
	return err
}

// place has the properties by which the kernel identifies a route.
type place struct {
	table    int
	dst      netip.Prefix
	priority int
}

func (o *ops) prune(rows iter.Seq2[*desiredroutes.Route, statedb.Revision]) error {
	keep := make(map[place]struct{})
	missing := make(map[place]struct{}) // destinations, with priority 0, of which the kernel has no desired route
	for row := range rows {
		keep[place{row.Table, row.Dst, row.Priority()}] = struct{}{}
		missing[place{row.Table, row.Dst, 0}] = struct{}{}
	}
	all, err := o.kernel.List()
	if err != nil {
		return err
	}
	var stale []route
	for _, have := range all {
		if have.Protocol != desiredroutes.Protocol {
			continue
		}
		if _, ok := keep[place{have.Table, have.Dst, have.Priority}]; ok {
			delete(missing, place{have.Table, have.Dst, 0})
		} else {
			stale = append(stale, have)
		}
	}
	var errs []error
	for _, have := range stale {
		if _, ok := missing[place{have.Table, have.Dst, 0}]; ok {
			errs = append(errs, fmt.Errorf("delete route %s metric %d: the route that replaces it is not in the kernel yet", have, have.Priority))
			continue
		}
		if err := o.kernel.Delete(have); err != nil {
			errs = append(errs, fmt.Errorf("delete route %s: %w", have, err))
		}
	}
	return errors.Join(errs...)
}

// wanted returns the desired route of a row in the kernel's form.
func wanted(row *desiredroutes.Route, link int) route {
	r := route{Table: row.Table, Dst: row.Dst, Link: link, Gw: row.Gw, Src: row.Src, MTU: row.MTU, Scope: row.Scope,
		Priority: row.Priority(), Protocol: desiredroutes.Protocol}
	if row.Dst.Addr().Is6() {
		r.Scope = 0
	}
	return r
}
