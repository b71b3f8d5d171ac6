/* The maps of services: addresses of services, and the backends of each. Only the agent writes these maps, except affinity. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "endpoint.h"

#define SERVICES_MAX 65536
#define SERVICE_SLOTS_MAX 98304
#define AFFINITY_MAX 8192 /* clients with affinity, and backends of services with it */

/* The scope of a client. If internal and external clients have different backends, a frontend has an entry for each scope. */
enum service_scope {
	SCOPE_EXTERNAL = 0, /* all clients; where SERVICE_TWO_SCOPES is set, only external clients */
	SCOPE_INTERNAL = 1, /* pods and processes of this node */
};

struct service_key {
	struct addr_key addr;
	__be16 port;
	__u8 protocol; /* IPPROTO_TCP, IPPROTO_UDP, IPPROTO_SCTP */
	__u8 scope;    /* enum service_scope */
};

enum service_flag {
	SERVICE_TWO_SCOPES = 1,	   /* look up again with SCOPE_INTERNAL when the client is internal */
	SERVICE_OUTSIDE = 2,	   /* external clients may use it */
	SERVICE_RANGES = 4,	   /* ... only from addresses in source_ranges */
	SERVICE_DROP = 8,	   /* without backends the packet is dropped instead of rejected */
	SERVICE_AFFINITY = 16,	   /* a client keeps its backend */
	SERVICE_MAGLEV = 32,	   /* external clients get the backend from the table in maglev */
	SERVICE_NODE_PORT = 64,	   /* the address is one of the node; no process may bind the port */
	SERVICE_LOCAL_ONLY = 128,  /* only backends of this node (a traffic policy is Local) */
	SERVICE_LOOPBACK = 256,	   /* for processes of this node only, like 127.0.0.1 */
	SERVICE_RANGES_DENY = 512, /* inverts SERVICE_RANGES: not from addresses in the ranges that deny */
};

/* A frontend. It is replaced as a whole, so its fields are always consistent. */
struct service {
	__u32 id;	/* of the frontend, never 0; stays the same when the agent restarts */
	__u32 first;	/* its first slot in service_slots */
	__u32 count;	/* backends that take new connections, each with a slot; 0 for no backend */
	__u32 maglev;	/* with SERVICE_MAGLEV the first slot of its table in maglev */
	__u32 maglev_size; /* ... and the number of its slots */
	__u32 affinity; /* with SERVICE_AFFINITY the timeout in seconds after the last new connection */
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
	__uint(map_flags, BPF_F_NO_PREALLOC); /* only the agent writes it; most nodes need a fraction of the entries */
	__type(key, struct service_key);
	__type(value, struct service);
} services SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SERVICES_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32); /* backend id, never 0; stays the same when the agent restarts */
	__type(value, struct backend);
} backends SEC(".maps");

/* The backends of all frontends, the slots of each frontend in a row. A frontend whose backends change gets other slots, and its previous slots stay unused for
 * a second: a program that has read the previous entry still finds its backends. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SERVICE_SLOTS_MAX);
	__type(key, __u32);
	__type(value, __u32); /* backend id */
} service_slots SEC(".maps");

/* Maglev's tables (Eisenbud et al., NSDI 2016) of the frontends that use one; service.maglev_size is their size, which a flag sets. The agent sizes the map for
 * its flags; without Maglev it has one slot. During a change of the size a program may still have the previous map: if it finds no slot, or 0 in it, it uses
 * service_slots. */
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
	__u32 used;    /* time of the last new connection, in ticks of 2^30 ns of the monotonic clock */
};

/* Programs write it; the agent removes expired entries, and entries of removed services and backends. When the map is full, the client that was idle longest
 * loses its affinity: forged clients must not end the affinity of new ones for hours. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, AFFINITY_MAX);
	__type(key, struct affinity_key);
	__type(value, struct affinity_entry);
} affinity SEC(".maps");

struct affinity_member {
	__u32 service;
	__u32 backend;
};

/* Backends of frontends with affinity, and their scopes: the previous backend of a client counts only while the client's scope has it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, AFFINITY_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct affinity_member);
	__type(value, __u32); /* a bit for each scope that has the backend, the lowest for SCOPE_EXTERNAL */
} affinity_members SEC(".maps");

struct source_range_key {
	__u32 prefixlen; /* the 64 bits of service, family and pad count, so an IPv4 /24 is 88 */
	__u32 service;	 /* id */
	__u8 family;	 /* with SOURCE_RANGE_DENY for a range that denies */
	__u8 pad[3];
	__u8 addr[16];
};

#define SOURCE_RANGE_FULL (64 + 128)
/* Ranges that allow and ranges that deny have different keys, so a frontend whose policy changes never uses one as the other. Programs without support for
 * ranges that deny find none that allows, and drop external clients. */
#define SOURCE_RANGE_DENY 128

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, SERVICES_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct source_range_key);
	__type(value, __u32); /* 1 */
} source_ranges SEC(".maps");
