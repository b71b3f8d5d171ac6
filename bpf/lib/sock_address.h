/* Addresses as the hooks of sockets see them. An IPv4 address in an IPv6 socket is the same address. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "endpoint.h"

/* An end of a connection. */
struct sock_end {
	struct addr_key addr;
	__be16 port;
	__u16 pad;
};

#define MAPPED_PREFIX bpf_htonl(0xffff) /* third word of ::ffff:0:0/96 */

static __always_inline void sock_read4(struct bpf_sock_addr *ctx, struct sock_end *end)
{
	end->addr = addr_key_ipv4(ctx->user_ip4);
	end->port = ctx->user_port;
	end->pad = 0;
}

static __always_inline void sock_write4(struct bpf_sock_addr *ctx, const struct sock_end *end)
{
	__u32 words[4];

	__builtin_memcpy(words, end->addr.addr, sizeof(words));
	ctx->user_ip4 = words[0];
	ctx->user_port = end->port;
}

static __always_inline void sock_read6(struct bpf_sock_addr *ctx, struct sock_end *end)
{
	__u32 words[4];

	words[0] = ctx->user_ip6[0];
	words[1] = ctx->user_ip6[1];
	words[2] = ctx->user_ip6[2];
	words[3] = ctx->user_ip6[3];
	end->port = ctx->user_port;
	end->pad = 0;
	if (!words[0] && !words[1] && words[2] == MAPPED_PREFIX) {
		end->addr = addr_key_ipv4(words[3]);
		return;
	}
	__builtin_memset(&end->addr, 0, sizeof(end->addr));
	end->addr.family = 6;
	__builtin_memcpy(end->addr.addr, words, sizeof(words));
}

static __always_inline void sock_write6(struct bpf_sock_addr *ctx, const struct sock_end *end)
{
	__u32 words[4];

	__builtin_memcpy(words, end->addr.addr, sizeof(words));
	if (end->addr.family == 4) {
		ctx->user_ip6[0] = 0;
		ctx->user_ip6[1] = 0;
		ctx->user_ip6[2] = MAPPED_PREFIX;
		ctx->user_ip6[3] = words[0];
	} else {
		ctx->user_ip6[0] = words[0];
		ctx->user_ip6[1] = words[1];
		ctx->user_ip6[2] = words[2];
		ctx->user_ip6[3] = words[3];
	}
	ctx->user_port = end->port;
}

static __always_inline int sock_is(const struct sock_end *end, const struct addr_key *addr, __be16 port)
{
	__u32 a[5], b[5];

	__builtin_memcpy(a, &end->addr, sizeof(a));
	__builtin_memcpy(b, addr, sizeof(b));
	return end->port == port && !((a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2]) | (a[3] ^ b[3]) | (a[4] ^ b[4]));
}
