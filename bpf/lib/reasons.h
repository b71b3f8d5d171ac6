/* Drop reasons and the source files of drops. The Go package events has the same numbers; a test compares both. */
#pragma once

#include <linux/types.h>

/* Numbers up to 239 are Cilium's and have Cilium's meaning. Cilium counts drops upwards from 130, far below 240, where Waggle's begin, and other numbers
 * upwards from 0; Waggle counts its own of these downwards from 129. All fit into the eight bits that an event has for them. */
enum drop_reason {
	REASON_FORWARDED = 0,
	REASON_VNI_DIFFERS = 129,	 /* no drop: ipcache has another identity for the sender than the VNI; the one in ipcache is used */
	REASON_SOURCE_MAC = 130,
	REASON_DESTINATION_MAC = 131,
	REASON_SOURCE_IP = 132,
	REASON_POLICY = 133,
	REASON_MALFORMED = 134,		 /* a header contradicts itself or the length of the packet */
	REASON_TRUNCATED = 135,		 /* the packet ends inside a header */
	REASON_TOO_BIG = 136,		 /* longer than the path carries */
	REASON_UNKNOWN_L3 = 139,	 /* neither IP nor ARP */
	REASON_MISSED_STEP = 140,	 /* the tail call to a step failed */
	REASON_WRITE = 141,		 /* the kernel rejected a change of the packet */
	REASON_TUNNEL_KEY = 147,	 /* not from the tunnel, or not to an underlay address of this node */
	REASON_UNKNOWN_TARGET = 150,	 /* not the address of the pod behind this link */
	REASON_STALE_IP = 151,		 /* the address leads to an endpoint that no longer has it, or is not valid beyond the pod's link */
	REASON_NO_ENDPOINT = 152,	 /* no local endpoint has the address */
	REASON_CT_INSERT = 155,		 /* the kernel rejected the entry of the flow */
	REASON_IPV6_EXTENSION = 156,
	REASON_NO_BACKEND = 158,	 /* the service has no backend */
	REASON_SERVICE_PROTOCOL = 159,	 /* a packet of this protocol cannot be translated to another port */
	REASON_NO_TUNNEL = 160,		 /* the tunnel device does not exist yet, or the node has no address for the tunnel */
	REASON_CT_UNKNOWN = 163,	 /* an ICMP reply or error that belongs to no flow */
	REASON_UNSUPPORTED_L2 = 166,	 /* a length in place of the EtherType */
	REASON_NAT_NO_MAPPING = 167,	 /* no free port to translate to, or no entry to translate a reply by */
	REASON_NO_ROUTE = 169,		 /* the node has no route to the backend */
	REASON_ENCAPSULATED = 170,	 /* a pod sends to the tunnel of a node */
	REASON_UNKNOWN_IDENTITY = 171,	 /* the peer is known, its identity is not known yet; or no node sends this VNI */
	REASON_UNKNOWN_SENDER = 172,	 /* the link belongs to no endpoint */
	REASON_CLUSTER_IP = 174,	 /* an external client of a service that serves only the cluster */
	REASON_FRAGMENT_UNKNOWN = 175,	 /* the first fragment did not pass on this node before this one */
	REASON_FORBIDDEN_ICMPV6 = 176,
	REASON_SOURCE_RANGE = 177,	 /* the service does not allow this external client */
	REASON_POLICY_DENY = 181,	 /* a rule denies; with REASON_POLICY no rule allows */
	REASON_VLAN = 182,
	REASON_NO_NODE = 197,		 /* the node that sent it into the tunnel is not in the cluster */
	REASON_MULTICAST = 240,		 /* multicast and broadcast stay on the pod's link */
	REASON_CONTROL_TRAFFIC = 241,	 /* group reports, router solicitations, address probes: expected, without an event */
	REASON_NEIGHBOUR_TARGET = 242,	 /* ARP or ND for an address other than the gateway's */
	REASON_CT_FULL = 243,		 /* no capacity for another established flow: the packet is dropped */
	REASON_CT_SHARE = 244,		 /* the endpoint has used up its share of established flows */
	REASON_NAT_FULL = 245,		 /* no capacity for another translated flow: the packet is dropped */
	REASON_HOPS = 246,		 /* its TTL expires on this node */
	REASON_NAT_SHARE = 247,		 /* the endpoint has used up its share of translated flows */
	REASON_SERVICE_PORT = 248,	 /* no packet: a process of the node binds a port that serves a service */
	REASON_INTERNAL = 249,		 /* a step returned a code that is no verdict: a bug of the program */
	REASON_TUNNEL_SOURCE = 250,	 /* the node that sent it into the tunnel does not have the inner source */
};

enum direction {
	DIRECTION_UNKNOWN = 0,
	DIRECTION_INGRESS = 1,	/* to a pod */
	DIRECTION_EGRESS = 2,	/* from a pod, or from the node through waggle_host */
	DIRECTIONS = 3,
};

/* Numbers from 200 are Waggle's; Cilium uses other numbers for its files. */
enum source_file {
	FILE_ARP = 200,
	FILE_DELIVER = 201,
	FILE_ETH = 203,
	FILE_HOST_EGRESS = 204,
	FILE_IPV4 = 205,
	FILE_IPV6 = 206,
	FILE_ND = 207,
	FILE_POD_EGRESS = 208,
	FILE_POD_INGRESS = 209,
	FILE_POLICY = 210,
	FILE_CONNTRACK = 211,
	FILE_FRAGMENTS = 212,
	FILE_EVALUATE = 213,
	FILE_L4 = 214,
	FILE_RELATED = 215,
	FILE_TRACK = 216,
	FILE_NAT_CREATE = 217,
	FILE_POD_SERVICE = 218,
	FILE_NETDEV_INGRESS = 219,
	FILE_NETDEV_EGRESS = 220,
	FILE_SNAT = 221,
	FILE_ROUTE = 222,
	FILE_NAT_REWRITE = 223,
	FILE_NAT_ERROR = 224,
	FILE_DROP = 225,
	FILE_POD_STEPS = 226,
	FILE_OVERLAY = 227,
	FILE_OVERLAY_INGRESS = 228,
	FILE_FORWARD = 229,
	FILE_OVERLAY_INNER = 230,
	FILE_TO_NODE = 231,
	FILE_DECAP = 232,
	FILE_PATH_SEND = 233,
};

/* The result of a step for a packet: negative is a drop, the others are below. A drop has its reason in bits 0-7, the line in bits 8-21 and the file in bits
 * 23-30; bit 22 means that the packet is rejected: the sender gets a reset or an ICMP error. */
typedef __s32 verdict;

#define CONTINUE 0	/* the next step decides */
#define PASS 1		/* the packet continues, as the hook defines it */
#define REDIRECTED 7	/* the result of bpf_redirect and bpf_redirect_peer when they accept a packet */

/* Codes that a step returns to its caller in addition to verdicts. They differ from every verdict and from each other, so that a code that reaches finish() by
 * mistake drops the packet. */
enum step {
	STEP_TOO_BIG = 16,	    /* route_lookup: the route carries packets of route.mtu bytes */
	STEP_UNKNOWN_FRAGMENT = 17, /* netdev_read: the first fragment is not known */
	STEP_TRANSLATE = 18,	    /* pod_translate and its parts: there is an entry */
	STEP_EVALUATE = 19,	    /* track_find: the policies must be evaluated */
	STEP_KEEP = 20,		    /* track_find: the flow must be stored */
	STEP_IN_USE = 21,	    /* nat_create: the packets of another flow equal the translated ones */
	STEP_NEIGHBOR = 22,	    /* ARP, or a neighbor solicitation */
	STEP_ERROR = 23,	    /* track: an ICMP error of a pod */
	STEP_SERVICE = 24,	    /* pod_translate: the first packet of a flow to a service */
};

#define DROP(file, reason) ((verdict)((1U << 31) | ((__u32)(file) << 23) | ((__u32)__LINE__ << 8) | (__u32)(reason)))

#define DROP_REJECT_FLAG (1U << 22)
#define DROP_REJECT(file, reason) ((verdict)(DROP(file, reason) | DROP_REJECT_FLAG))

static inline __attribute__((always_inline)) int drop_is_reject(verdict v) { return v < 0 && (v & DROP_REJECT_FLAG); }
static inline __attribute__((always_inline)) __u8 drop_reason_of(verdict v) { return (__u8)v; }
static inline __attribute__((always_inline)) __u16 drop_line_of(verdict v) { return ((__u32)v >> 8) & 0x3fff; }
static inline __attribute__((always_inline)) __u8 drop_file_of(verdict v) { return ((__u32)v >> 23) & 0xff; }
