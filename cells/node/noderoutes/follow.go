package noderoutes

import (
	"errors"
	"maps"
	"net/netip"
	"slices"

	"github.com/cilium/statedb"
	"github.com/gaissmai/bart"

	"github.com/waggle-net/waggle/pkg/changefeed"
	"github.com/waggle-net/waggle/pkg/clusternodes"
	"github.com/waggle-net/waggle/pkg/onlink"
	"github.com/waggle-net/waggle/pkg/tables/desiredroutes"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/mtus"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/nodeslots"
	"github.com/waggle-net/waggle/pkg/tables/pathtests"
)

// routing maintains the routes to all nodes. A round computes only routes that changed nodes contribute to, and all routes when the tunnel or the networks of
// this node have changed.
type routing struct {
	params
	rows    *clusternodes.Rows
	network *onlink.Follower
	slots   *changefeed.Feed[*nodeslots.Slot] // nil without a tunnel
	tunnel  tunnel                            // zero without one
	past    map[string]struct{}               // nodes that are reached past the tunnel
	carried map[string]int                    // packet size in bytes that a path with a reduced size carries, by node
	touched map[string]struct{}               // nodes whose contribution may have changed
	whole   bool                              // the contributions of all nodes may have changed

	nodes   map[string]contribution
	covers  map[int]*coverage                               // covers of the ranges into the tunnel, by the packet size that the path carries
	addrs   bart.Table[int]                                 // with a tunnel: number of nodes with this underlay address
	limit   int                                             // maximum number of routes into the tunnel
	merged  map[netip.Prefix]int                            // packet size of each route into the tunnel if the covers have more prefixes than the limit; else nil
	direct  map[netip.Prefix]map[string]desiredroutes.Route // routes to next hops, by range and node
	faults  map[string][]error                              // reasons for missing routes, by node
	skipped map[string]struct{}                             // nodes behind gateways that are not faults

	routes map[string]desiredroutes.Route // all desired routes, by key
	hops   int                            // number of routes to next hops in routes
	put    map[string]struct{}            // keys of routes that desired-routes may lack
	remove map[string]desiredroutes.Route // deleted routes that desired-routes may still contain, by key
	synced bool                           // except for put and remove, desired-routes contains exactly the routes
}

// contribution is the input of the routes from one node.
type contribution struct {
	size   int                   // largest packet that the path carries, in bytes
	ranges []netip.Prefix        // pod ranges with routes into the tunnel
	addrs  []netip.Prefix        // underlay addresses of the node, with a tunnel
	direct []desiredroutes.Route // routes to next hops
}

// follow begins without nodes and networks: the first [routing.upTo] adds all that exist.
func follow(p params) (*routing, error) {
	r := &routing{params: p, limit: maxRoutes, touched: map[string]struct{}{}, whole: true, past: map[string]struct{}{}, routes: map[string]desiredroutes.Route{}, put: map[string]struct{}{},
		remove: map[string]desiredroutes.Route{}}
	txn := p.DB.WriteTxn(p.Nodes, p.Routes, p.Devices, p.Slots)
	defer txn.Commit()
	var errs [3]error
	r.rows, errs[0] = clusternodes.FollowRows(txn, p.Nodes)
	r.network, errs[1] = onlink.Follow(txn, p.Routes, p.Devices)
	if p.Agent.Tunnel() {
		r.slots, errs[2] = changefeed.Follow(txn, p.Slots)
	}
	if err := errors.Join(errs[:]...); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

func (r *routing) close() {
	r.rows.Close()
	r.network.Close()
	r.slots.Close()
}

// upTo computes the routes that change with a snapshot. It reports false and changes no route before the networks of this node are complete, and with a tunnel
// before the router addresses and the MTU are known.
func (r *routing) upTo(txn statedb.ReadTxn, changed *statedb.WatchSet) (usable bool) {
	r.rows.UpTo(txn, changed, func(before, after *nodes.Node) {
		for _, n := range []*nodes.Node{before, after} {
			if n != nil {
				r.touched[n.Name] = struct{}{}
			}
		}
	})
	r.whole = r.network.UpTo(txn, changed) || r.whole
	if r.slots != nil {
		for _, change := range r.slots.UpTo(txn, changed) {
			r.readSlot(change.Object, change.Deleted)
		}
	}
	usable = changefeed.Watch(txn, changed, r.Routes, r.Devices)
	r.readSizes(txn, changed)
	if r.Agent.Tunnel() {
		usable = r.readTunnel(txn, changed) && usable
	}
	if usable {
		r.compute()
	}
	return usable
}

// readSlot reads whether packets to a node are sent past the tunnel.
func (r *routing) readSlot(slot *nodeslots.Slot, deleted bool) {
	_, was := r.past[slot.Node]
	if slot.Direct && !deleted {
		r.past[slot.Node] = struct{}{}
	} else {
		delete(r.past, slot.Node)
	}
	if _, is := r.past[slot.Node]; is != was {
		r.touched[slot.Node] = struct{}{}
	}
}

// readTunnel reads the router addresses and the MTU. It reports whether both are known.
func (r *routing) readTunnel(txn statedb.ReadTxn, changed *statedb.WatchSet) (ready bool) {
	changefeed.Watch(txn, changed, r.LocalNode, r.MTUs)
	var now tunnel
	mtu, _, found := r.MTUs.Get(txn, mtus.ByPrefix(mtus.Default))
	for self := range r.LocalNode.All(txn) {
		now, ready = tunnel{routers: [2]netip.Addr{self.IPv4.Router, self.IPv6.Router}, mtu: mtu.RouteMTU}, self.Ready && found
		now.past, now.into = r.Agent.TunnelMetrics()
		break
	}
	if now != r.tunnel {
		r.tunnel, r.whole = now, true
	}
	return ready
}

// readSizes reads the packet sizes that paths carry.
func (r *routing) readSizes(txn statedb.ReadTxn, changed *statedb.WatchSet) {
	carried, carriedChanged := pathtests.Carried(txn, r.PathTests)
	changed.Add(carriedChanged)
	for _, sizes := range [][2]map[string]int{{r.carried, carried}, {carried, r.carried}} {
		for name, size := range sizes[0] {
			if sizes[1][name] != size {
				r.touched[name] = struct{}{}
			}
		}
	}
	r.carried = carried
}

// compute replaces the contributions of touched nodes, or of all nodes, and computes the routes to the changed prefixes.
func (r *routing) compute() {
	places := map[netip.Prefix]struct{}{} // prefixes whose routes may change
	again := r.whole || len(r.touched) > 0
	if r.whole {
		r.whole, r.nodes, r.covers, r.addrs = false, map[string]contribution{}, map[int]*coverage{}, bart.Table[int]{}
		r.direct, r.faults, r.skipped = map[netip.Prefix]map[string]desiredroutes.Route{}, map[string][]error{}, map[string]struct{}{}
		for _, route := range r.routes {
			places[route.Dst] = struct{}{}
		}
		for name := range r.rows.All() {
			r.touched[name] = struct{}{}
		}
	}
	for name := range r.touched {
		r.leave(name, places)
		if n := r.rows.All()[name]; n != nil && n.Source != nodes.Local {
			r.join(n, places)
		}
	}
	if again && r.Agent.Tunnel() {
		r.limitRoutes(places)
	}
	r.touched = map[string]struct{}{} // not cleared: a map does not release memory
	for p := range places {
		route, found := r.toNextHop(p)
		r.want(route, found)
		if r.Agent.Tunnel() {
			route, found := r.intoTunnel(p)
			r.want(route, found)
		}
	}
}

// join adds the contribution of a node.
func (r *routing) join(n *nodes.Node, places map[netip.Prefix]struct{}) {
	var c contribution
	var problems []error
	if !r.Agent.Tunnel() {
		c.direct, problems = routesTo(n, r.carried[n.Name], r.network.Network)
	} else {
		c.size = r.size(n.Name)
		c.ranges, problems = rangesOf(n, r.network.Network)
		c.addrs = addrsOf(n)
		if _, past := r.past[n.Name]; past {
			c.direct = r.tunnel.direct(n, c.size, r.network.Network)
		}
	}
	if n.Source == nodes.Removed {
		problems = nil // another node may have its address
	}
	for _, err := range problems {
		if u := (unreachable{}); errors.As(err, &u) && r.Config.DirectRoutingSkipUnreachable {
			r.skipped[n.Name] = struct{}{}
		} else {
			r.faults[n.Name] = append(r.faults[n.Name], err)
		}
	}
	if len(c.ranges)+len(c.direct)+len(c.addrs) == 0 {
		return
	}
	r.nodes[n.Name] = c
	for _, p := range c.addrs {
		count, _ := r.addrs.Get(p)
		r.addrs.Insert(p, count+1)
	}
	for _, p := range c.ranges {
		if r.covers[c.size] == nil {
			r.covers[c.size] = &coverage{}
		}
		r.covers[c.size].add(p, func(p netip.Prefix) { places[p] = struct{}{} })
	}
	for _, route := range c.direct {
		if r.direct[route.Dst] == nil {
			r.direct[route.Dst] = map[string]desiredroutes.Route{}
		}
		r.direct[route.Dst][n.Name] = route
		places[route.Dst] = struct{}{}
	}
}

// leave removes the contribution of a node.
func (r *routing) leave(name string, places map[netip.Prefix]struct{}) {
	c := r.nodes[name]
	delete(r.nodes, name)
	delete(r.faults, name)
	delete(r.skipped, name)
	for _, p := range c.addrs {
		if count, _ := r.addrs.Get(p); count > 1 {
			r.addrs.Insert(p, count-1)
		} else {
			r.addrs.Delete(p)
		}
	}
	for _, p := range c.ranges {
		r.covers[c.size].remove(p, func(p netip.Prefix) { places[p] = struct{}{} })
	}
	for _, route := range c.direct {
		if delete(r.direct[route.Dst], name); len(r.direct[route.Dst]) == 0 {
			delete(r.direct, route.Dst)
		}
		places[route.Dst] = struct{}{}
	}
}

// size returns the length in bytes of the largest inner packet to a node, with a tunnel.
func (r *routing) size(node string) int {
	if carried := r.carried[node]; carried > 0 {
		return min(r.tunnel.mtu, carried)
	}
	return r.tunnel.mtu
}

// toNextHop returns the route to a range via a next hop. It reports false when there is none; only the key of the returned route is valid then.
func (r *routing) toNextHop(p netip.Prefix) (desiredroutes.Route, bool) {
	if of := r.direct[p]; len(of) > 0 {
		return of[slices.Max(slices.Collect(maps.Keys(of)))], true
	}
	route := desiredroutes.Route{Table: desiredroutes.MainTable, Dst: p}
	if r.Agent.Tunnel() {
		route.Metric = r.tunnel.past
	}
	return route, false
}

// intoTunnel returns the route into the tunnel for a prefix of the covers, with the largest size if several covers contain the prefix, or for a merged prefix.
// It reports false when there is none; only the key of the returned route is valid then.
func (r *routing) intoTunnel(p netip.Prefix) (desiredroutes.Route, bool) {
	if r.merged != nil {
		size, found := r.merged[p]
		return r.tunnel.route(p, size), found
	}
	for _, size := range slices.Backward(slices.Sorted(maps.Keys(r.covers))) {
		if r.covers[size].has(p) {
			route := r.tunnel.route(p, size)
			return route, route.Src.IsValid()
		}
	}
	return r.tunnel.route(p, 0), false
}

// want adds or replaces a route if found is true; otherwise it deletes the route with the same key.
func (r *routing) want(route desiredroutes.Route, found bool) {
	key := route.Key()
	old, had := r.routes[key]
	if found == had && (!had || old.Equal(&route)) {
		return
	}
	if had && old.Gw.IsValid() {
		r.hops--
	}
	if !found {
		delete(r.routes, key)
		delete(r.put, key)
		r.remove[key] = old
		return
	}
	if r.routes[key] = route; route.Gw.IsValid() {
		r.hops++
	}
	r.put[key] = struct{}{}
	delete(r.remove, key)
}

// write updates desired-routes with the changed routes. When the nodes become complete and after an error, it writes all routes. Before the nodes are complete,
// it deletes no route, and it adds no route to a next hop where the kernel has an own route with another gateway.
func (r *routing) write(complete bool) (err error) {
	switch {
	case complete && !r.synced:
		err = r.Desired.Replace(owner, slices.Collect(maps.Values(r.routes)))
	case len(r.put) > 0 || len(r.remove) > 0 && complete:
		put := make([]desiredroutes.Route, 0, len(r.put))
		var left map[string]netip.Addr
		if !complete {
			left = r.left()
		}
		for key := range r.put {
			route := r.routes[key]
			if gateway, found := left[kernelKey(route)]; !found || !route.Gw.IsValid() || gateway == route.Gw {
				put = append(put, route)
			}
		}
		var remove []desiredroutes.Route
		if complete {
			remove = slices.Collect(maps.Values(r.remove))
		}
		err = r.Desired.Update(owner, put, remove)
	}
	if r.synced = complete && err == nil; err == nil {
		clear(r.put)
		clear(r.remove)
	}
	return err
}

// left returns the gateways of the agent's routes in the kernel, by kernel key. While the nodes come from the snapshot on disk, routes of the previous run take
// precedence because the snapshot is older.
func (r *routing) left() map[string]netip.Addr {
	left := map[string]netip.Addr{}
	for route := range r.Routes.All(r.DB.ReadTxn()) {
		if route.Protocol == desiredroutes.Protocol {
			left[route.Destination()] = route.Gw
		}
	}
	return left
}

// kernelKey returns the properties by which the kernel identifies a route.
func kernelKey(r desiredroutes.Route) string {
	return (&devices.Route{Table: r.Table, Dst: r.Dst, Priority: r.Priority()}).Destination()
}
