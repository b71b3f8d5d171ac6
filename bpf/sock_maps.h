/* What sockets have been told of services: the address that a process asked for, and the backend that it got. It lives and dies with the
 * socket. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "endpoint.h"

/* Services whose answers one UDP socket tells apart while it is connected to nobody. One more takes the place of the one used least
 * recently; a resolver asks two or three. */
#define SOCK_PEERS 8

/* A service as a socket sees it. All hooks but those of bind run under the socket's lock, so nobody reads half of one. */
struct sock_peer {
	struct addr_key service;
	struct addr_key backend;
	__be16 service_port;
	__be16 backend_port;
	__u32 backend_id; /* 0: the place is free */
	__u32 slot;	  /* in service_slots, where the backend was last seen */
	__u32 pad;
	__u64 used; /* when the process sent last, of the monotonic clock */
};

struct sock_peers {
	struct sock_peer peers[SOCK_PEERS];
};

/* Whom a socket is connected to. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct sock_peer);
} sock_connected SEC(".maps");

/* To whom a UDP socket has sent by sendto and sendmsg. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct sock_peers);
} sock_sent SEC(".maps");
