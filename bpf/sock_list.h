/* What a list of sockets says, and what of the kernel's own structures it is read from: their offsets are those of the kernel that loads the
 * program (CO-RE). */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include "sock_maps.h"

/* A socket. It is read without the socket's lock, so the peer may be half of one and half of the next. */
struct sock_listed {
	struct sock_peer peer;
	__u64 cookie;
	__u32 netns; /* the inode number of its network namespace */
	__u16 protocol;
	__u16 pad;
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct ns_common {
	unsigned int inum;
};

struct net {
	struct ns_common ns;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct sock_common {
	possible_net_t skc_net;
};

struct sock {
	struct sock_common __sk_common;
	__u16 sk_protocol;
};

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__bpf_sk_storage_map {
	struct bpf_iter_meta *meta;
	struct bpf_map *map;
	struct sock *sk;
	void *value;
};

#pragma clang attribute pop
