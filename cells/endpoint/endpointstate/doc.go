// Package endpointstate reports the state of each endpoint: it compares the desired endpoints with the rows that are in the datapath, and moves each endpoint
// through Cilium's states.
//
// Tables in: endpoints (desired); endpoint-facts, bpf-links, bpf-endpoints, attachments, endpoint-identities, endpoint-policies and ipcache (progress of the
// datapath). Table out: endpoint-states.
//
// Kernel state: none. No state survives a restart: a restored endpoint starts in the state restoring and becomes ready when its rows are written again.
package endpointstate
