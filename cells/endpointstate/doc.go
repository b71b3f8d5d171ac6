// Package endpointstate says what has become of each endpoint: it compares what is wanted with what the datapath has
// taken over, and moves each endpoint through Cilium's states.
//
// Tables in: endpoints (what is wanted); endpoint-facts, bpf-links, bpf-endpoints and attachments (how far their
// reconcilers have come). Table out: endpoint-states, as its only writer.
//
// Kernel state: none. After a restart nothing is remembered: a restored endpoint begins in the state restoring and gets
// to ready as its rows are written again.
package endpointstate
