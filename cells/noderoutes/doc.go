// Package noderoutes keeps routes to the pods of nodes that are on the same link (--auto-direct-node-routes).
//
// Tables in: nodes, routes, devices. Table out: desired-routes, as owner "node-routes". Without the flag it wants no route, so those of an earlier
// run go.
//
// The next hop is the address of the node. A node that only a gateway leads to gets no route: the gateway would have to know the
// node's pods. With --direct-routing-skip-unreachable that is no fault. Nor does a range get a route that lies in the network of a device of this
// node: whoever claims such a range would take over its neighbours.
package noderoutes
