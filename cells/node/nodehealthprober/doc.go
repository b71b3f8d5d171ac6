// Package nodehealthprober probes the nodes of the cluster, including this one, and replies to their probes.
//
// Tables in: nodes, node-traffic, and those of [readiness.Tables]. Tables out: node-health (a row for each probed address), node-views (a row for each node
// whose agent knows other nodes than this one). Each probe of a node sends ICMP echo requests to all of its addresses and an HTTP request to port 4240 of one
// or all of them; a server of this cell replies to probes of other nodes. Replies of agents contain a digest of the nodes that they know, which is compared
// with the digest of this agent. A socket, health.sock, serves Cilium's health API from the table.
//
// A state changes to unreachable after three failures in a row. A probe that this node cannot send says nothing about another node. No state survives a
// restart: every node is unknown until it is probed. The cell owns no state in the kernel.
package nodehealthprober
