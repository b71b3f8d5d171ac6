/* The state of sockets that use services: the address that the process requested, and the backend that it got. It has the lifetime of the
 * socket. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "endpoint.h"

/* Services whose replies an unconnected UDP socket can distinguish. A further one replaces the least recently used one; a resolver needs two or
 * three. */
#define SOCK_PEERS 8

/* A service of a socket. All hooks except bind run under the socket's lock, so no hook reads a half-written value. */
struct sock_peer {
	struct addr_key service;
	struct addr_key backend;
	__be16 service_port;
	__be16 backend_port;
	__u32 backend_id; /* 0: the slot is free */
	__u32 slot;	  /* in service_slots, the last known slot of the backend */
	__u32 pad;
	__u64 used; /* time of the last send of the process, of the monotonic clock */
};

struct sock_peers {
	struct sock_peer peers[SOCK_PEERS];
};

/* The service to which a socket is connected. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct sock_peer);
} sock_connected SEC(".maps");

/* The services to which a UDP socket has sent with sendto and sendmsg. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct sock_peers);
} sock_sent SEC(".maps");
