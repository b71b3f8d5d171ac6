//go:build ignore

/* Lists the sockets of one network namespace that the programs of sockets have connected to backends. Iterators over all values of a socket storage could list
 * the sockets of all namespaces at once, but hardened kernels reject iterators that may write to values of maps. */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "lib/sock_list.h"

static __always_inline void list(struct seq_file *seq, void *sk)
{
	struct sock_listed entry = {};
	const struct sock_peer *peer = bpf_sk_storage_get(&sock_connected, sk, NULL, 0);

	if (!peer)
		return;
	entry.peer = *peer;
	entry.cookie = bpf_get_socket_cookie(sk);
	bpf_seq_write(seq, &entry, sizeof(entry)); /* without room the kernel makes some and asks again */
}

SEC("iter/tcp")
int sock_list_tcp(struct bpf_iter__tcp *ctx)
{
	struct sock_common *sk = ctx->sk_common;

	if (sk) /* NULL after the last one */
		list(ctx->meta->seq, sk);
	return 0;
}

SEC("iter/udp")
int sock_list_udp(struct bpf_iter__udp *ctx)
{
	struct udp_sock *sk = ctx->udp_sk;

	if (sk)
		list(ctx->meta->seq, sk);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
