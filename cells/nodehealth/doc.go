// Package nodehealth probes the nodes of the cluster, this one included, and answers their probes.
//
// Table in: nodes. Table out: node-health, a row for each address that is probed. Each probe of a node sends ICMP echo requests to all of its
// addresses and an HTTP request to port 4240 of one or all of them; a server of this cell answers those of other nodes. A socket, health.sock,
// serves Cilium's health API from the table.
//
// A state changes to unreachable after three failures in a row. A probe that this node cannot send says nothing about another node. Nothing is
// kept over a restart: all is unknown then, until it is probed. The cell owns no state in the kernel.
package nodehealth
