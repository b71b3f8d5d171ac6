/* Services: which addresses are those of services, and which backends each has. The agent alone writes these maps, but for affinity. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "endpoint.h"

#define SERVICES_MAX 65536
#define SERVICE_SLOTS_MAX 98304
#define AFFINITY_MAX 8192 /* clients with affinity, and backends of services with it */

/* Who asks. Where internal and external clients meet other backends, a frontend has an entry for each of them. */
enum service_scope {
	SCOPE_EXTERNAL = 0, /* everybody; where SERVICE_TWO_SCOPES is set, only who comes from outside the cluster */
	SCOPE_INTERNAL = 1, /* pods and processes of this node */
};

struct service_key {
	struct addr_key addr;
	__be16 port;
	__u8 protocol; /* IPPROTO_TCP, IPPROTO_UDP, IPPROTO_SCTP */
	__u8 scope;    /* enum service_scope */
};

enum service_flag {
	SERVICE_TWO_SCOPES = 1,	   /* look again with SCOPE_INTERNAL when the client is internal */
	SERVICE_OUTSIDE = 2,	   /* who is outside the cluster may use it */
	SERVICE_RANGES = 4,	   /* ... from addresses in source_ranges only */
	SERVICE_DROP = 8,	   /* without backends drop instead of reject */
	SERVICE_AFFINITY = 16,	   /* a client keeps its backend */
	SERVICE_MAGLEV = 32,	   /* clients from outside choose by the table in maglev */
	SERVICE_NODE_PORT = 64,	   /* the address is one of the node; nobody may bind the port */
	SERVICE_LOCAL_ONLY = 128,  /* the backends are those of this node (a traffic policy is Local) */
	SERVICE_LOOPBACK = 256,	   /* for processes of this node only, as 127.0.0.1 */
	SERVICE_RANGES_DENY = 512, /* with SERVICE_RANGES the other way round: not from addresses in the ranges that deny */
};

/* A frontend. It is replaced as a whole, so its parts always fit together. */
struct service {
	__u32 id;	/* of the frontend, never 0; kept over restarts of the agent */
	__u32 first;	/* its first slot in service_slots */
	__u32 count;	/* how many backends take new connections, each with a slot; 0 is nobody */
	__u32 maglev;	/* with SERVICE_MAGLEV the first slot of its table in maglev */
	__u32 maglev_size; /* ... and how many slots that has */
	__u32 affinity; /* with SERVICE_AFFINITY seconds after the last new connection */
	enum service_flag flags; /* any of them */
};

struct backend {
	struct addr_key addr;
	__be16 port;
	__u8 protocol;
	__u8 flags; /* BACKEND_... */
};

#define BACKEND_LOCAL 1 /* a pod of this node, or the node itself */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SERVICES_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC); /* the agent alone writes it; most nodes need a fraction */
	__type(key, struct service_key);
	__type(value, struct service);
} services SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SERVICES_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32); /* backend id, never 0; kept over restarts of the agent */
	__type(value, struct backend);
} backends SEC(".maps");

/* The backends of all frontends, each frontend's one after another. A frontend whose backends change gets other slots, and those
 * that it had stay unused for a second: whoever has read the old entry finds what belonged to it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SERVICE_SLOTS_MAX);
	__type(key, __u32);
	__type(value, __u32); /* backend id */
} service_slots SEC(".maps");

/* Maglev's tables (Eisenbud et al., NSDI 2016) of the frontends that need one; service.maglev_size tells their size, which is a flag. The
 * agent makes the map as large as its flags demand; without Maglev it has one slot. While the size changes a program may still have the
 * map of before: where it finds no slot, or 0 in it, the slots of service_slots serve. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32); /* backend id */
} maglev SEC(".maps");

struct affinity_key {
	__u32 service; /* id */
	__u32 kind;    /* AFFINITY_... */
	__u8 client[16] __attribute__((aligned(8))); /* its address as in addr_key, or the cookie of its network namespace */
};

#define AFFINITY_IPV4 4
#define AFFINITY_IPV6 6
#define AFFINITY_NETNS 1

struct affinity_entry {
	__u32 backend; /* id */
	__u32 used;    /* when a connection began last, in ticks of 2^30 ns of the monotonic clock */
};

/* Written by programs; the agent removes what has expired and what belongs to services and backends that are gone. A full map means no
 * affinity for new clients. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, AFFINITY_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct affinity_key);
	__type(value, struct affinity_entry);
} affinity SEC(".maps");

struct affinity_member {
	__u32 service;
	__u32 backend;
};

/* Which backends frontends with affinity have, and for whom: what a client has kept counts only while its scope has it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, AFFINITY_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct affinity_member);
	__type(value, __u32); /* a bit for each scope that has it, the lowest for SCOPE_EXTERNAL */
} affinity_members SEC(".maps");

struct source_range_key {
	__u32 prefixlen; /* the 64 bits of service, family and pad count, so an IPv4 /24 is 88 */
	__u32 service;	 /* id */
	__u8 family;	 /* with SOURCE_RANGE_DENY of a range that denies */
	__u8 pad[3];
	__u8 addr[16];
};

#define SOURCE_RANGE_FULL (64 + 128)
/* Ranges that allow and ranges that deny are different keys, so a frontend whose policy changes never reads one as the other. Programs that do not
 * know ranges that deny find none that allows, and drop external clients. */
#define SOURCE_RANGE_DENY 128

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, SERVICES_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct source_range_key);
	__type(value, __u32); /* 1 */
} source_ranges SEC(".maps");
