// Package nodehealth probes the nodes of the cluster, this one included, and answers their probes.
//
// Tables in: nodes, node-traffic. Tables out: node-health, a row for each address that is probed; node-views, a row for each node whose agent knows other nodes
// than this one. Each probe of a node sends ICMP echo requests to all of its addresses and an HTTP request to port 4240 of one or all of them; a server
// of this cell answers those of other nodes. Answers of agents hold a digest of the nodes that they know, which is compared with that of this agent. A
// socket, health.sock, serves Cilium's health API from the table.
//
// A state changes to unreachable after three failures in a row. A probe that this node cannot send says nothing about another node. Nothing is
// kept over a restart: all is unknown then, until it is probed. The cell owns no state in the kernel.
package nodehealth
