package onlink

import (
	"github.com/cilium/statedb"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/changefeed"
	"github.com/waggle-net/waggle/pkg/tables/desiredroutes"
	"github.com/waggle-net/waggle/pkg/tables/devices"
)

// Follower keeps a network as of a snapshot. Changes of the agent's routes, of which each node may have one, do not rebuild it. Only one goroutine may use it.
type Follower struct {
	*Network
	routes        statedb.Table[*devices.Route]
	links         statedb.Table[*devices.Device]
	routeChanges  *changefeed.Feed[*devices.Route]
	deviceChanges *changefeed.Feed[*devices.Device]
}

// Follow returns a follower with an empty network; the first [Follower.UpTo] reads all rows. The transaction must hold the locks of both tables.
func Follow(txn statedb.WriteTxn, routes statedb.Table[*devices.Route], links statedb.Table[*devices.Device]) (*Follower, error) {
	f := &Follower{Network: Read(nil, nil), routes: routes, links: links}
	var err error
	if f.routeChanges, err = changefeed.Follow(txn, routes); err != nil {
		return nil, err
	}
	if f.deviceChanges, err = changefeed.Follow(txn, links); err != nil {
		f.routeChanges.Close()
		return nil, err
	}
	return f, nil
}

// UpTo applies the changes up to a snapshot, and adds channels to changed that close when there are more. It reports whether the network has changed.
func (f *Follower) UpTo(txn statedb.ReadTxn, changed *statedb.WatchSet) bool {
	again := false
	for _, change := range f.routeChanges.UpTo(txn, changed) {
		_, known := f.Network.routes.Get(change.Object.Dst)
		again = again || known || isForeign(change.Object)
	}
	for _, change := range f.deviceChanges.UpTo(txn, changed) {
		known := f.devices[change.Object.Index]
		again = again || change.Deleted || known == nil || known.Name != change.Object.Name
	}
	if !again {
		return false
	}
	before := f.Network
	f.Network = Read(statedb.Collect(f.routes.All(txn)), statedb.Collect(f.links.All(txn)))
	return !before.equal(f.Network)
}

// isForeign reports whether a route is a unicast route in the main table that the agent did not create.
func isForeign(r *devices.Route) bool {
	return r.Table == desiredroutes.MainTable && r.Type == unix.RTN_UNICAST && r.Protocol != desiredroutes.Protocol
}

// equal reports whether two networks have the same routes over devices of the same names.
func (n *Network) equal(o *Network) bool {
	if n.routes.Size() != o.routes.Size() {
		return false
	}
	for dst, r := range n.routes.All() {
		s, found := o.routes.Get(dst)
		if !found || r.Gw != s.Gw || r.LinkIndex != s.LinkIndex || n.devices[r.LinkIndex].Name != o.devices[s.LinkIndex].Name {
			return false
		}
	}
	return true
}

// Close ends the subscription. It has no effect on a nil follower.
func (f *Follower) Close() {
	if f != nil {
		f.routeChanges.Close()
		f.deviceChanges.Close()
	}
}
