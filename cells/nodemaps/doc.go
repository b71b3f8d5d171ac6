// Package nodemaps tells programs where the nodes of the cluster are: the address of each node in the underlay, by the id of the node, and the node of each
// such address. Without a tunnel it tells them by which ids programs forward past the stack, to pods to which routes lead. With one it
// also decides which nodes are reached by routes all the same.
//
// Tables in: nodes, node-ids, overlays, path-tests, node-paths, devices, bpf-maps. Table out: node-slots, complete once the first three are. It owns every entry of the maps nodes and node_addrs and is their
// only writer. Without a tunnel it empties node_addrs, and where programs may not pass the stack nodes as well.
//
// After a restart the maps hold what the previous run wrote. Nothing is written before the row of overlays names the source of outer headers, and nothing is
// removed before the tables are complete.
package nodemaps
