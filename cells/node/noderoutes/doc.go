// Package noderoutes maintains routes to the pod ranges of other nodes: via nodes on the same link (--auto-direct-node-routes), or into the tunnel
// (--routing-mode=tunnel, hybrid), with routes past the tunnel to nodes that are reached without it.
//
// Tables in: nodes, routes, devices, path-tests; with a tunnel local-node, mtus and node-slots. Tables out: none. Table contributed to: desired-routes (owner
// "node-routes"). With neither --auto-direct-node-routes nor a tunnel the cell requests no route, and routes of a previous run are deleted.
//
// Without a tunnel the next hop is the address of the node. A node behind a gateway gets no route, because the gateway would have to route the pod range
// as well; with --direct-routing-skip-unreachable such a node is not an error. With a tunnel the routes lead into waggle_host, whose program finds the node
// of each packet; adjacent ranges share a route, and beyond 64 routes neighbouring ranges as well. A pod range inside the subnet of a local device gets no
// route: it would redirect the traffic of neighbours.
package noderoutes
