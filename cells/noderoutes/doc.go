// Package noderoutes maintains routes to the pod ranges of nodes on the same link (--auto-direct-node-routes).
//
// Tables in: nodes, routes, devices. Table out: desired-routes, as owner "node-routes". Without the flag it
// requests no route, and routes of a previous run are deleted.
//
// The next hop is the address of the node. A node behind a gateway gets no route, because the gateway would have to route the pod range as well;
// with --direct-routing-skip-unreachable such a node is not an error. A pod range inside the subnet of a local device gets no route
// either: it would redirect the traffic of neighbours.
package noderoutes
