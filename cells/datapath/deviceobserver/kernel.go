package deviceobserver

import (
	"context"

	"github.com/waggle-net/waggle/pkg/tables/devices"
)

// change is one notification of the kernel. Exactly one of the pointers is set.
type change struct {
	device    *devices.Device
	address   *devices.Address
	route     []*devices.Route // all next hops of one route
	neighbor  *devices.Neighbor
	gone      bool // the object was deleted; otherwise it is new or has changed
	replacing bool // the route replaces all others to the same destination
}

// state is the content of one full list.
type state struct {
	devices   []*devices.Device
	addresses []devices.Address
	routes    []*devices.Route
	neighbors []devices.Neighbor
}

// feed delivers changes until its context ends or the kernel drops notifications.
type feed interface {
	Changes() <-chan change // closed at the end
	Err() error             // reason of the end; nil when the context ended
}

// kernel is the interface of the observer to netlink.
type kernel interface {
	Subscribe(ctx context.Context) (feed, error)
	List() (state, error)
	Routes() ([]*devices.Route, error)
}
