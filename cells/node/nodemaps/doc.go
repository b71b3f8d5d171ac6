// Package nodemaps writes the nodes of the cluster to the maps of programs: the address of each node in the underlay, by the id of the node, and the node of
// each such address. Without a tunnel the maps have the ids for which programs forward past the stack, to pods to which routes lead. With a tunnel the cell
// also determines which nodes are nevertheless reached by routes.
//
// Tables in: nodes, node-ids, overlays, path-tests, node-paths, devices, bpf-maps. Table out: node-slots, complete once the first three are. It owns every
// entry of the maps nodes and node_addrs and is their only writer. Without a tunnel it empties node_addrs. It empties the map nodes as well if programs must
// not bypass the stack.
//
// After a restart the maps have the entries of the previous run. The cell writes nothing before the row of overlays names the source of outer headers, and
// removes nothing before the tables are complete.
package nodemaps
