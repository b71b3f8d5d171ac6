/* What is remembered of flows. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "endpoint.h"
#include "rate.h"

#define CT_FLOWS 131072	   /* established flows of each family */
#define CT_NEW_FLOWS 16384 /* flows of each family that are not established yet */

#define CT_BURST_FLOWS 8192 /* flows of each family beyond the rate of new flows of their endpoints */

/* Established flows, of both families together, that each of CT_ENDPOINTS endpoints can always have, whatever the others do: flows beyond such
 * guarantees never use the entries reserved for them. */
#define CT_GUARANTEE (CT_FLOWS / 1024)
#define CT_ENDPOINTS 256

/* One key for both directions of a flow: the side with the lower address, or with the lower port when the addresses are
 * equal, comes first. Values are compared as the bytes lie. Other protocols than TCP, UDP, UDP-Lite, SCTP and ICMP have ports 0.
 * An ICMP question and its answers have the identifier as both ports; asker tells whose question it is, so that each side may
 * ask with the same identifier, and its type tells echo from the others. */
struct ct_key4 {
	__be32 addr[2];
	__be16 port[2];
	__u8 protocol;
	__u8 asker; /* ICMP: 1 when the first side asks, 2 when the second does; otherwise 0 */
	__u8 type;  /* ICMP: of the question */
	__u8 pad;
};

struct ct_key6 {
	__u8 addr[2][16] __attribute__((aligned(8)));
	__be16 port[2];
	__u8 protocol;
	__u8 asker;
	__u8 type;
	__u8 pad;
};

/* The path on which the packets of a pod leave its link. */
enum flow_path {
	PATH_PEER = 0,	/* straight into the pod of the peer */
	PATH_STACK = 1, /* up to the node's stack */
};

/* Flags of a flow. The opener sent its first packet, to the target. Bits 11 and 16 to 31 are reserved, see "The entry of a flow" in
 * Documentation/datapath.md. */
enum ct_flag {
	CT_OPENER_SECOND = 1, /* the opener is the second side of the key */
	CT_VIA_STACK = 2,     /* the path is PATH_STACK */
	CT_OPENER_FIN = 4,
	CT_TARGET_FIN = 8,
	CT_OPENER_RESET = 16, /* TCP: the last segment of the opener was a reset */
	CT_STANDS = 32,	 /* TCP: one of them sent a segment without SYN */
	CT_AUDITED = 64, /* the policies under audit would have denied it */
	CT_TRANSLATED = 128, /* the opener asked a service, and the target is its backend */
	CT_TARGET_RESET = 256,
	CT_REPLIED = 512, /* the target sent something other than a reset */
	CT_BY_TUNNEL = 1 << 10, /* the peer is another node, which sends through the tunnel whatever address it sends from */
	CT_BY_VNI = 1 << 12, /* the identity of the peer is the VNI of its packets, for ipcache does not know it */
};

#define CT_PATHS (CT_VIA_STACK | 1 << 11) /* all bits of the path, also the one that is reserved */
#define CT_RESET (CT_OPENER_RESET | CT_TARGET_RESET)
#define CT_CLOSING (CT_OPENER_FIN | CT_TARGET_FIN | CT_RESET)

/* A flow. What it was judged by stands in it: when all of that still holds, nothing else is looked up. Local endpoints are
 * known by id and revision of their facts, everybody else by the epochs of the address. Elements of deleted flows are reused at once, so
 * whoever reads one compares the check. */
struct ct_entry {
	__u32 check;   /* made of the key, never 0 */
	__u32 expires; /* in ticks of 2^30 ns of the monotonic clock */
	__u32 created;
	__u32 epochs;  /* see epochs_of in ipcache.h */
	__u32 opener_identity;
	__u32 target_identity;
	__u32 opener_revision;
	__u32 target_revision;
	__u16 opener; /* local endpoint id, 0 when it is none */
	__u16 target;
	enum ct_flag flags; /* any of them */
	__u64 packets; /* of both directions, see ct_account; CPUs race on them. Bits 48 to 63 are reserved. */
	__u64 bytes;
};
_Static_assert(__builtin_offsetof(struct ct_entry, target_identity) == __builtin_offsetof(struct ct_entry, opener_identity) + 4 &&
		       __builtin_offsetof(struct ct_entry, target_revision) == __builtin_offsetof(struct ct_entry, opener_revision) + 4 &&
		       __builtin_offsetof(struct ct_entry, target) == __builtin_offsetof(struct ct_entry, opener) + 2,
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

/* What ct_est4 and ct_est6 were before they got another size, see resize.h. The agent puts those maps in their places. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct ct_key4);
	__type(value, struct ct_entry);
} ct_est4_former SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct ct_key6);
	__type(value, struct ct_entry);
} ct_est6_former SEC(".maps");

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

/* New flows that begin while their endpoint begins too many: they evict only each other. */
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

/* Rates of new flows: the first half of the array counts the flows that each endpoint initiates, the second half those that its peers initiate, so that
 * a flood from outside takes nothing from the flows of its target. Only programs use it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2 * ENDPOINTS_MAX);
	__type(key, __u32); /* id of a local initiator, or ENDPOINTS_MAX and the id of a local target */
	__type(value, struct rate);
} ct_rates SEC(".maps");

/* Established flows of each endpoint: of the opener when it is local, otherwise of the target. Slot 0 has the flows of all endpoints beyond
 * their guarantee. Programs add and take away; the agent, which deletes expired flows, writes what it counted in a whole pass. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ENDPOINTS_MAX);
	__type(key, __u32); /* local endpoint id, 0 for the flows beyond guarantees */
	__type(value, __u32);
} ct_flows SEC(".maps");

/* What wakes the agent's collector: a table is full, or an endpoint has used up its share. */
struct ct_signal {
	__u32 family;
	__u32 endpoint; /* whose share it is; 0 when the table is full */
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 64 * 1024);
} ct_signals SEC(".maps");
