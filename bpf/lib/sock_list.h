/* The records of a list of sockets, and the kernel's structures from which they are read: the offsets are relocated for the kernel that loads the programs
 * (CO-RE). */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include "sock_maps.h"

/* A socket. It is read without the socket's lock, so the peer may be half of the old one and half of the new one. */
struct sock_listed {
	struct sock_peer peer;
	__u64 cookie;
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct sock_common;
struct udp_sock;
struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__tcp {
	struct bpf_iter_meta *meta;
	struct sock_common *sk_common;
};

struct bpf_iter__udp {
	struct bpf_iter_meta *meta;
	struct udp_sock *udp_sk;
};

#pragma clang attribute pop
