// Package endpointmaps writes the endpoints of this node and the node's own addresses to the maps of the datapath.
//
// A controller turns each endpoint into one row of endpoint-facts, one of bpf-links and one of bpf-endpoints for each address; reconcilers write them to the
// corresponding maps. Other cells contribute addresses of the node through [github.com/waggle-net/waggle/pkg/tables/bpfendpoints.HostWriter]. An endpoint in
// quarantine has no rows, so none of its packets pass.
//
// Tables in: endpoints, endpoint-policies, local-node (for the gateways). Tables out: endpoint-facts, bpf-links, bpf-endpoints. Kernel state: every entry of
// the maps endpoint_facts, bpf_links and bpf_endpoints, as the only writer.
//
// Entries that another program changes or adds are repaired by verification, every --verify-interval.
//
// After a restart the maps hold the entries of the previous run. Equal facts cost one read each; links and addresses are written again. Entries without a row
// are removed only after the endpoints, the gateways and the node's addresses are complete. The revision of a slot of endpoint_facts continues from the value
// in the map, so flows never mistake one endpoint for another.
package endpointmaps
