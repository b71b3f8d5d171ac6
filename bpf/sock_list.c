//go:build ignore

/* Lists the sockets of all network namespaces that the programs of sockets have connected to backends. */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "sock_list.h"

SEC("iter/bpf_sk_storage_map")
int sock_list(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	struct sock_listed entry = {};
	const struct sock_peer *peer = ctx->value;
	struct sock *sk = ctx->sk;

	if (!sk || !peer) /* after the last one */
		return 0;
	entry.peer = *peer;
	entry.cookie = bpf_get_socket_cookie(sk);
	entry.netns = sk->__sk_common.skc_net.net->ns.inum;
	entry.protocol = sk->sk_protocol;
	bpf_seq_write(ctx->meta->seq, &entry, sizeof(entry)); /* without room the kernel makes some and asks again */
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
