// Package endpointmaps tells the datapath about the endpoints of this node and about the node's own addresses.
//
// A controller turns each endpoint into one row of endpoint-facts, one of bpf-links and one of bpf-endpoints for each
// address; reconcilers push them into the maps of the same purpose. Other cells contribute addresses of the node through
// [github.com/waggle-net/waggle/pkg/tables/bpfendpoints.HostWriter]. An endpoint in quarantine gets no rows, so nothing
// of it passes.
//
// Tables: reads endpoints and local-node (for the gateways); writes endpoint-facts, bpf-links and bpf-endpoints.
// Kernel state: every entry of the maps endpoint_facts, bpf_links and bpf_endpoints; nobody else writes them.
//
// Entries that somebody else changes or adds are put right when the maps are read back, every --verify-interval.
//
// After a restart the maps hold what the earlier run wrote. Facts that are equal cost one read each, links and addresses
// are written once more; entries without a row are removed once the endpoints, the gateways and the node's addresses are in, and not before. The revision of a
// slot of endpoint_facts goes on from what the map has, so flows never mistake one endpoint for another.
package endpointmaps
