/* The maps of translated flows. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "endpoint.h"

/* Entries; a translated flow has two. */
#define NAT_FLOWS4 524288
#define NAT_FLOWS6 262144

/* Added to the family of a ct_signal. Its endpoint is the local endpoint of the flow, 0 without one. */
#define NAT_SIGNAL 16	    /* nat4 or nat6 is full, or no port was left: the flow was dropped */
#define NAT_SHARE_SIGNAL 32 /* the endpoint has used up its share: the flow was dropped */
#define NAT_WAKE_SIGNAL 48  /* the endpoint has nearly used up its share */

/* The hooks that translate. */
enum nat_place {
	NAT_FROM_POD = 1,    /* in pod_egress, before the flow of the packet is looked up */
	NAT_TO_POD = 2,	     /* on delivery to a pod, after the flow of the packet was found */
	NAT_FROM_OUTSIDE = 3, /* in netdev_ingress */
	NAT_TO_OUTSIDE = 4,   /* in netdev_egress */
};

/* A packet at a hook. ICMP requests and replies have their identifier as both ports; ICMP errors are translated by their inner
 * packets. */
struct nat_key4 {
	__be32 saddr;
	__be32 daddr;
	__be16 sport;
	__be16 dport;
	__u8 protocol;
	__u8 place; /* enum nat_place */
	__u8 pad[2];
};

struct nat_key6 {
	__u8 saddr[16] __attribute__((aligned(8)));
	__u8 daddr[16] __attribute__((aligned(8)));
	__be16 sport;
	__be16 dport;
	__u8 protocol;
	__u8 place;
	__u8 pad[2];
};

enum nat_flag {
	NAT_SERVICE = 1,      /* between a client and a backend of a service */
	NAT_MASQUERADE = 2,   /* of a pod under an address of this node */
	NAT_NODE = 4,	      /* of the node itself: an ICMP request, or a flow whose tuple was in use */
	NAT_REPLY = 8,	      /* the entry is for packets of the flow's responder */
	NAT_SENDER_FIN = 16,
	NAT_SENDER_RESET = 32,
	NAT_REDIRECT = 64,    /* the translated packet has an address of this node as its source, and leaves at once, past the stack */
	NAT_SENDER_ESTABLISHED = 128, /* TCP: a segment without SYN passed */
	NAT_DIRECT = 256,     /* of a pod with a peer past a service, from a port that its flow to the service uses as well */
};

/* The translated packet. The key of the reverse entry follows from it: source and destination are exchanged, and the hook is the field reverse. The reply
 * entry is stored first, with NOEXIST, so two flows never use the same ports; both entries are deleted together. The memory of a deleted entry may be reused at
 * once, so a reader compares the check. */
struct nat_entry4 {
	__u32 check;   /* computed from the key as by ct_check, never 0 */
	__u32 expires; /* in ticks of 2^30 ns of the monotonic clock; the flow has expired when both entries have */
	__be32 saddr;
	__be32 daddr;
	__be16 sport;
	__be16 dport;
	enum nat_place reverse;
	enum nat_flag flags; /* any of them */
	__u32 service;	     /* id of the frontend, 0 for none */
	__u32 backend;	     /* id, 0 for none */
	__u32 endpoint;	     /* local endpoint for which it counts: the initiator, or the one that replies; 0 for none */
};

struct nat_entry6 {
	__u32 check;
	__u32 expires;
	__u8 saddr[16] __attribute__((aligned(8)));
	__u8 daddr[16] __attribute__((aligned(8)));
	__be16 sport;
	__be16 dport;
	enum nat_place reverse;
	enum nat_flag flags;
	__u32 service;
	__u32 backend;
	__u32 endpoint;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, NAT_FLOWS4);
	__uint(map_flags, BPF_F_NO_PREALLOC); /* most nodes translate few flows */
	__type(key, struct nat_key4);
	__type(value, struct nat_entry4);
} nat4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, NAT_FLOWS6);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct nat_key6);
	__type(value, struct nat_entry6);
} nat6 SEC(".maps");

/* The previous maps of nat4 and nat6 during a resize, see resize.h. The agent replaces these placeholders by the previous maps. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct nat_key4);
	__type(value, struct nat_entry4);
} nat4_previous SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct nat_key6);
	__type(value, struct nat_entry6);
} nat6_previous SEC(".maps");

struct nat_count {
	__s32 ipv4;
	__s32 ipv6;
};

/* Translated flows of each endpoint; 0 has the flows without an endpoint, except the node's own. Programs add and subtract; the agent, which deletes expired
 * flows, writes the number that it counted in a complete scan. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ENDPOINTS_MAX);
	__type(key, __u32); /* local endpoint id, 0 for none */
	__type(value, struct nat_count);
} nat_flows SEC(".maps");

enum nat_total {
	NAT_BEYOND = 0,	 /* flows beyond guarantees, of endpoints, without an endpoint and of the node */
	NAT_OF_NODE = 1, /* flows that the node itself initiates */
	NAT_TOTALS = 2,
};

/* Counters of translated flows that belong to no single endpoint. Programs and the agent write them in the same way. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, NAT_TOTALS);
	__type(key, enum nat_total);
	__type(value, struct nat_count);
} nat_totals SEC(".maps");
