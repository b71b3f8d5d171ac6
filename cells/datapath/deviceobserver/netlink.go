package deviceobserver

import (
	"context"

	"github.com/cilium/hive/cell"

	"github.com/waggle-net/waggle/pkg/tables/devices"

	"github.com/waggle-net/waggle/pkg/datapath/rtnl"
)

// netlinkKernel implements [kernel].
type netlinkKernel struct {
	handle *rtnl.Handle // opened by the start hook, in the current network namespace
	buffer int          // bytes of each subscription's receive buffer
}

func newKernel(lc cell.Lifecycle) kernel {
	k := &netlinkKernel{buffer: rtnl.DefaultBuffer}
	lc.Append(cell.Hook{
		OnStart: func(cell.HookContext) (err error) { k.handle, err = rtnl.Open(); return err },
		OnStop:  func(cell.HookContext) error { k.handle.Close(); return nil },
	})
	return k
}

// List implements kernel.
func (k *netlinkKernel) List() (state, error) {
	links, err := k.handle.Links()
	if err != nil {
		return state{}, err
	}
	addrs, err := k.handle.Addresses()
	if err != nil {
		return state{}, err
	}
	routes, err := k.Routes()
	if err != nil {
		return state{}, err
	}
	neighbors, err := k.handle.Neighbors()
	if err != nil {
		return state{}, err
	}
	s := state{routes: routes}
	for _, l := range links {
		s.devices = append(s.devices, deviceRow(l))
	}
	for _, a := range addrs {
		s.addresses = append(s.addresses, addressRow(a))
	}
	for _, n := range neighbors {
		if row, ok := neighborRow(n); ok {
			s.neighbors = append(s.neighbors, row)
		}
	}
	return s, nil
}

// Routes implements kernel.
func (k *netlinkKernel) Routes() ([]*devices.Route, error) {
	routes, err := k.handle.Routes()
	if err != nil {
		return nil, err
	}
	var rows []*devices.Route
	for _, r := range routes {
		rows = append(rows, routeRows(r)...)
	}
	return rows, nil
}

// Subscribe implements kernel.
func (k *netlinkKernel) Subscribe(ctx context.Context) (feed, error) {
	s, err := k.handle.Subscribe(ctx, k.buffer)
	if err != nil {
		return nil, err
	}
	f := &netlinkFeed{subscription: s, changes: make(chan change, 64)}
	go f.translate(ctx)
	return f, nil
}

// netlinkFeed translates netlink events into changes.
type netlinkFeed struct {
	subscription *rtnl.Subscription
	changes      chan change
}

func (f *netlinkFeed) Changes() <-chan change { return f.changes }
func (f *netlinkFeed) Err() error             { return f.subscription.Err() }

func (f *netlinkFeed) translate(ctx context.Context) {
	defer close(f.changes)
	for e := range f.subscription.Events {
		c, ok := toChange(e)
		if !ok {
			continue
		}
		select {
		case f.changes <- c:
		case <-ctx.Done():
		}
	}
}
