/* Translated flows. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "endpoint.h"

/* Entries; a translated flow has two. */
#define NAT_FLOWS4 524288
#define NAT_FLOWS6 262144

/* Added to the family of a ct_signal, which names the endpoint that a flow is of, 0 for none of this node. */
#define NAT_SIGNAL 16	    /* nat4 or nat6 is full, or no port was left: the flow was refused */
#define NAT_SHARE_SIGNAL 32 /* the endpoint has used up its share: the flow was refused */
#define NAT_WAKE_SIGNAL 48  /* the endpoint comes near it */

/* Where a translation takes place. */
enum nat_place {
	NAT_FROM_POD = 1,    /* in pod_egress, before the flow of the packet is looked for */
	NAT_TO_POD = 2,	     /* where a packet goes into a pod, after its flow was found */
	NAT_FROM_OUTSIDE = 3, /* in netdev_ingress */
	NAT_TO_OUTSIDE = 4,   /* in netdev_egress */
};

/* A packet as it comes to the place. ICMP questions and answers have their identifier as both ports, errors are translated by what they
 * quote. */
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
	NAT_SERVICE = 1,      /* a client and a backend of a service */
	NAT_MASQUERADE = 2,   /* a pod as this node */
	NAT_NODE = 4,	      /* of the node itself: an ICMP question, or a flow whose tuple was taken */
	NAT_REPLY = 8,	      /* the entry is for what the flow's target sends */
	NAT_SENDER_FIN = 16,
	NAT_SENDER_RESET = 32,
	NAT_REDIRECT = 64,    /* what it becomes has an address of this node as source and leaves at once, past the stack */
	NAT_SENDER_STANDS = 128, /* TCP: a segment without SYN came by */
	NAT_DIRECT = 256,     /* a pod and whom it asks past a service, from a port that it asks the service from as well */
};

/* What a packet becomes, and with it the key of the twin: the entry of the other direction has what this one's packets become, source and
 * target exchanged, and twin as its place. It is stored before this one, with NOEXIST, so nobody's ports are taken twice; both go together.
 * An entry's memory may be reused at once, so whoever reads one compares the check. */
struct nat_entry4 {
	__u32 check;   /* made of the key as ct_check does it, never 0 */
	__u32 expires; /* in ticks of 2^30 ns of the monotonic clock; the flow is over when both twins have expired */
	__be32 saddr;
	__be32 daddr;
	__be16 sport;
	__be16 dport;
	enum nat_place twin;
	enum nat_flag flags; /* any of them */
	__u32 service;	     /* id of the frontend, 0 for none */
	__u32 backend;	     /* id, 0 for none */
	__u32 endpoint;	     /* local endpoint that it counts for: who opened it, or who answers; 0 for none */
};

struct nat_entry6 {
	__u32 check;
	__u32 expires;
	__u8 saddr[16] __attribute__((aligned(8)));
	__u8 daddr[16] __attribute__((aligned(8)));
	__be16 sport;
	__be16 dport;
	enum nat_place twin;
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

/* What nat4 and nat6 were before they got another size, see resize.h. The agent puts those maps in their places. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct nat_key4);
	__type(value, struct nat_entry4);
} nat4_former SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct nat_key6);
	__type(value, struct nat_entry6);
} nat6_former SEC(".maps");

struct nat_count {
	__s32 ipv4;
	__s32 ipv6;
};

/* Translated flows of each endpoint; those of none count for 0, but for the node's own. Programs add and take away; the agent, which deletes what is
 * over, writes what it counted in a whole pass. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ENDPOINTS_MAX);
	__type(key, __u32); /* local endpoint id, 0 for none */
	__type(value, struct nat_count);
} nat_flows SEC(".maps");

enum nat_total {
	NAT_BEYOND = 0,	 /* flows beyond guarantees, of all endpoints, of none and of the node */
	NAT_OF_NODE = 1, /* flows that the node itself opens */
	NAT_TOTALS = 2,
};

/* What is counted of translated flows of no one endpoint, in the same way. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, NAT_TOTALS);
	__type(key, enum nat_total);
	__type(value, struct nat_count);
} nat_totals SEC(".maps");
