//go:build ignore

/* Sockets of processes that use services: connect, sendto, recvfrom, getpeername and bind of a cgroup. */
#include <linux/bpf.h>
#include <linux/errno.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>
#include "lib/sock_address.h"
#include "lib/sock_service.h"

#define DENY 0
#define PROCEED 1

/* sock_serviced reports whether services apply to sockets of this kind. */
static __always_inline int sock_serviced(struct bpf_sock_addr *ctx)
{
	return ctx->protocol == IPPROTO_TCP || ctx->protocol == IPPROTO_UDP;
}

static __always_inline int sock_reject(int error)
{
	bpf_set_retval(error);
	return DENY;
}

SEC("cgroup/connect4")
int sock_connect4(struct bpf_sock_addr *ctx)
{
	struct sock_end to;
	int result;

	if (!sock_serviced(ctx))
		return PROCEED;
	sock_read4(ctx, &to);
	result = sock_connect(ctx, &to);
	if (result < 0)
		return sock_reject(result);
	if (result == SOCK_TRANSLATED)
		sock_write4(ctx, &to);
	return PROCEED;
}

SEC("cgroup/connect6")
int sock_connect6(struct bpf_sock_addr *ctx)
{
	struct sock_end to;
	int result;

	if (!sock_serviced(ctx))
		return PROCEED;
	sock_read6(ctx, &to);
	result = sock_connect(ctx, &to);
	if (result < 0)
		return sock_reject(result);
	if (result == SOCK_TRANSLATED)
		sock_write6(ctx, &to);
	return PROCEED;
}

SEC("cgroup/sendmsg4")
int sock_sendmsg4(struct bpf_sock_addr *ctx)
{
	struct sock_end to;
	int result;

	if (!sock_serviced(ctx))
		return PROCEED;
	sock_read4(ctx, &to);
	result = sock_send(ctx, &to);
	if (result < 0)
		return sock_reject(result);
	if (result == SOCK_TRANSLATED)
		sock_write4(ctx, &to);
	return PROCEED;
}

SEC("cgroup/sendmsg6")
int sock_sendmsg6(struct bpf_sock_addr *ctx)
{
	struct sock_end to;
	int result;

	if (!sock_serviced(ctx))
		return PROCEED;
	sock_read6(ctx, &to);
	result = sock_send(ctx, &to);
	if (result < 0)
		return sock_reject(result);
	if (result == SOCK_TRANSLATED)
		sock_write6(ctx, &to);
	return PROCEED;
}

SEC("cgroup/recvmsg4")
int sock_recvmsg4(struct bpf_sock_addr *ctx)
{
	struct sock_end from;

	sock_read4(ctx, &from);
	if (sock_sender(ctx, &from) == SOCK_TRANSLATED)
		sock_write4(ctx, &from);
	return PROCEED;
}

SEC("cgroup/recvmsg6")
int sock_recvmsg6(struct bpf_sock_addr *ctx)
{
	struct sock_end from;

	sock_read6(ctx, &from);
	if (sock_sender(ctx, &from) == SOCK_TRANSLATED)
		sock_write6(ctx, &from);
	return PROCEED;
}

SEC("cgroup/getpeername4")
int sock_getpeername4(struct bpf_sock_addr *ctx)
{
	struct sock_end peer;

	sock_read4(ctx, &peer);
	if (sock_requested(ctx, &peer) == SOCK_TRANSLATED)
		sock_write4(ctx, &peer);
	return PROCEED;
}

SEC("cgroup/getpeername6")
int sock_getpeername6(struct bpf_sock_addr *ctx)
{
	struct sock_end peer;

	sock_read6(ctx, &peer);
	if (sock_requested(ctx, &peer) == SOCK_TRANSLATED)
		sock_write6(ctx, &peer);
	return PROCEED;
}

/* sock_guarded reports whether bind protection applies: not in pods, and not for ports that the kernel chooses. */
static __always_inline int sock_guarded(struct bpf_sock_addr *ctx)
{
	return sock_bind_protection && ctx->user_port && sock_serviced(ctx) && bpf_get_netns_cookie(ctx) == sock_host_netns;
}

SEC("cgroup/bind4")
int sock_bind4(struct bpf_sock_addr *ctx)
{
	struct sock_end at;

	if (!sock_guarded(ctx))
		return PROCEED;
	sock_read4(ctx, &at);
	if (!sock_in_use(ctx, &at))
		return PROCEED;
	return sock_reject(sock_rejected(REASON_SERVICE_PORT, DIRECTION_UNKNOWN, -EADDRINUSE));
}

SEC("cgroup/bind6")
int sock_bind6(struct bpf_sock_addr *ctx)
{
	struct sock_end at;

	if (!sock_guarded(ctx))
		return PROCEED;
	sock_read6(ctx, &at);
	if (!sock_in_use(ctx, &at))
		return PROCEED;
	return sock_reject(sock_rejected(REASON_SERVICE_PORT, DIRECTION_UNKNOWN, -EADDRINUSE));
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
