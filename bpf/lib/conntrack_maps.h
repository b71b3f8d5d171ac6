/* The maps of flows. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "endpoint.h"
#include "rate.h"

#define CT_FLOWS 131072	   /* established flows of each family */
#define CT_NEW_FLOWS 16384 /* flows of each family that are not established */

#define CT_BURST_FLOWS 8192 /* flows of each family beyond the new-flow rate of their endpoints */

/* Established flows, of both families together, that each of CT_ENDPOINTS endpoints can always have. Flows beyond such guarantees never use the entries
 * reserved for them. */
#define CT_GUARANTEE (CT_FLOWS / 1024)
#define CT_ENDPOINTS 256

/* One key for both directions of a flow: the side with the lower address, or with the lower port when the addresses are equal, is the first. Values are
 * compared in the order of their bytes. Protocols other than TCP, UDP, UDP-Lite, SCTP and ICMP have ports 0. An ICMP request and its replies have the
 * identifier as both ports; requester is the side that sent the request, so each side may send requests with the same identifier, and type separates echo from
 * other requests. */
struct ct_key4 {
	__be32 addr[2];
	__be16 port[2];
	__u8 protocol;
	__u8 requester; /* ICMP: 1 when the first side sent the request, 2 when the second did; otherwise 0 */
	__u8 type;  /* ICMP: of the request */
	__u8 pad;
};

struct ct_key6 {
	__u8 addr[2][16] __attribute__((aligned(8)));
	__be16 port[2];
	__u8 protocol;
	__u8 requester;
	__u8 type;
	__u8 pad;
};

/* The path on which the packets of a pod leave its link. */
enum flow_path {
	PATH_PEER = 0,	/* straight into the pod of the peer */
	PATH_STACK = 1, /* to the node's stack */
};

/* Flags of a flow. The initiator sent its first packet, to the responder. Bits 11 and 16 to 31 are reserved, see "The entry of a flow" in
 * Documentation/datapath.md. */
enum ct_flag {
	CT_INITIATOR_SECOND = 1, /* the initiator is the second side of the key */
	CT_VIA_STACK = 2,     /* the path is PATH_STACK */
	CT_INITIATOR_FIN = 4,
	CT_RESPONDER_FIN = 8,
	CT_INITIATOR_RESET = 16, /* TCP: the last segment of the initiator was a reset */
	CT_ESTABLISHED = 32,	 /* TCP: either side sent a segment without SYN */
	CT_AUDITED = 64, /* the policies in audit mode would have denied it */
	CT_TRANSLATED = 128, /* the initiator sent to a service, and the responder is its backend */
	CT_RESPONDER_RESET = 256,
	CT_REPLIED = 512, /* the responder sent a packet other than a reset */
	CT_BY_TUNNEL = 1 << 10, /* the peer is another node that sends through the tunnel, from any of its addresses */
	CT_BY_VNI = 1 << 12, /* the identity of the peer is the VNI of its packets, because ipcache does not know the peer */
};

#define CT_PATHS (CT_VIA_STACK | 1 << 11) /* all bits of the path, including the reserved one */
#define CT_RESET (CT_INITIATOR_RESET | CT_RESPONDER_RESET)
#define CT_CLOSING (CT_INITIATOR_FIN | CT_RESPONDER_FIN | CT_RESET)

/* A flow, with the values by which it was evaluated. While all of them are current, the cached verdict is valid and no policy is looked up. A local endpoint is
 * identified by its id and the revision of its facts, any other peer by the epochs of its address. Elements of deleted flows are reused at once, so a reader
 * compares the check. */
struct ct_entry {
	__u32 check;   /* computed from the key, never 0 */
	__u32 expires; /* in ticks of 2^30 ns of the monotonic clock */
	__u32 created;
	__u32 epochs;  /* see epochs_of in ipcache.h */
	__u32 initiator_identity;
	__u32 responder_identity;
	__u32 initiator_revision;
	__u32 responder_revision;
	__u16 initiator; /* local endpoint id, 0 when it is not local */
	__u16 responder;
	enum ct_flag flags; /* any of them */
	__u64 packets; /* of both directions, see ct_account; CPUs race on the counter. Bits 48 to 63 are reserved. */
	__u64 bytes;
};
_Static_assert(__builtin_offsetof(struct ct_entry, responder_identity) == __builtin_offsetof(struct ct_entry, initiator_identity) + 4 &&
		       __builtin_offsetof(struct ct_entry, responder_revision) == __builtin_offsetof(struct ct_entry, initiator_revision) + 4 &&
		       __builtin_offsetof(struct ct_entry, responder) == __builtin_offsetof(struct ct_entry, initiator) + 2,
	       "both ends are reached by an index");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, CT_FLOWS);
	__type(key, struct ct_key4);
	__type(value, struct ct_entry);
} ct_est4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, CT_FLOWS);
	__type(key, struct ct_key6);
	__type(value, struct ct_entry);
} ct_est6 SEC(".maps");

/* The previous maps of ct_est4 and ct_est6 during a resize, see resize.h. The agent replaces these placeholders by the previous maps. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct ct_key4);
	__type(value, struct ct_entry);
} ct_est4_previous SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct ct_key6);
	__type(value, struct ct_entry);
} ct_est6_previous SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, CT_NEW_FLOWS);
	__type(key, struct ct_key4);
	__type(value, struct ct_entry);
} ct_new4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, CT_NEW_FLOWS);
	__type(key, struct ct_key6);
	__type(value, struct ct_entry);
} ct_new6 SEC(".maps");

/* New flows beyond the rate of their endpoint: they evict only each other. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, CT_BURST_FLOWS);
	__type(key, struct ct_key4);
	__type(value, struct ct_entry);
} ct_burst4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, CT_BURST_FLOWS);
	__type(key, struct ct_key6);
	__type(value, struct ct_entry);
} ct_burst6 SEC(".maps");

/* Rates of new flows: the first half of the array counts the flows that each endpoint initiates, the second half the flows that its peers initiate. So a flood
 * from outside takes nothing from the flows that its destination initiates. Only programs use the map. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2 * ENDPOINTS_MAX);
	__type(key, __u32); /* id of a local initiator, or ENDPOINTS_MAX plus the id of a local responder */
	__type(value, struct rate);
} ct_rates SEC(".maps");

/* Established flows of each endpoint: a flow counts for the initiator when it is local, otherwise for the responder. Slot 0 has the flows of all endpoints
 * beyond their guarantees. Programs add and subtract; the agent, which deletes expired flows, writes the number that it counted in a complete scan. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ENDPOINTS_MAX);
	__type(key, __u32); /* local endpoint id, 0 for the flows beyond guarantees */
	__type(value, __u32);
} ct_flows SEC(".maps");

/* Wakes the agent's collector: a table is full, or an endpoint has used up its share. */
struct ct_signal {
	__u32 family;
	__u32 endpoint; /* that has used up its share; 0 when the table is full */
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 64 * 1024);
} ct_signals SEC(".maps");
