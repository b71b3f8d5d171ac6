/* Source ports of flows that leave with an address of the node: the port of a reply identifies its flow. A port of a socket of the node is not
 * allocated to another flow, so a flow of the node needs an entry only when its port towards the same destination is allocated already. */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "conntrack.h"
#include "ipcache.h"
#include "l4.h"
#include "nat.h"
#include "nat_create.h"
#include "reasons.h"

/* The source ports of the range, above the ports of NodePort services. Ports below the range are not allocated, so they need no entries. */
volatile const __u32 nat_port_first = 32768;
volatile const __u32 nat_port_last = 65535;

/* Number of ports that are tried. If half of all ports towards a destination are used, one flow in four billion finds no free port; with 90 percent, one in
 * thirty. */
#define SNAT_TRIES 32

static __always_inline int snat_in_range(__be16 port)
{
	return bpf_ntohs(port) >= nat_port_first && bpf_ntohs(port) <= nat_port_last;
}

enum snat_socket {
	SNAT_NO_SOCKET = 0,
	SNAT_LISTENS = 1,   /* a TCP listener, or a UDP socket that receives from any peer */
	SNAT_CONNECTED = 2, /* a socket of this one flow */
};

#define SOCKET_ESTABLISHED 1 /* BPF_TCP_ESTABLISHED; also the state of a connected UDP socket */
#define SOCKET_LISTEN 10     /* BPF_TCP_LISTEN */

/* Each protocol has a function: the verifier rejects one instruction that reads sockets of two types. */
static __noinline int snat_tcp_socket(struct __sk_buff *skb, struct bpf_sock_tuple *tuple, __u32 size)
{
	struct bpf_sock *socket = bpf_skc_lookup_tcp(skb, tuple, size, BPF_F_CURRENT_NETNS, 0);
	int found;

	if (!socket)
		return SNAT_NO_SOCKET;
	found = socket->state == SOCKET_LISTEN ? SNAT_LISTENS : SNAT_CONNECTED;
	bpf_sk_release(socket);
	return found;
}

static __noinline int snat_udp_socket(struct __sk_buff *skb, struct bpf_sock_tuple *tuple, __u32 size)
{
	struct bpf_sock *socket = bpf_sk_lookup_udp(skb, tuple, size, BPF_F_CURRENT_NETNS, 0);
	int found;

	if (!socket)
		return SNAT_NO_SOCKET;
	found = socket->state == SOCKET_ESTABLISHED ? SNAT_CONNECTED : SNAT_LISTENS;
	bpf_sk_release(socket);
	return found;
}

/* snat_socket finds the socket of the node that receives the replies to the source of the entry; protocol is that of the key. It queries the kernel:
 * any peer that makes the node reply could fill a table of the node's connections. UDP-Lite has a separate socket table, which programs cannot look
 * up. */
__attribute__((noinline)) int snat_socket(struct __sk_buff *skb, __u32 family)
{
	struct nat_work *work = nat_work();
	struct bpf_sock_tuple tuple = {};
	__u32 size = sizeof(tuple.ipv4);

	if (!work)
		return SNAT_NO_SOCKET;
	if (family == 6) {
		size = sizeof(tuple.ipv6);
		__builtin_memcpy(tuple.ipv6.saddr, work->entry.daddr, sizeof(tuple.ipv6.saddr));
		__builtin_memcpy(tuple.ipv6.daddr, work->entry.saddr, sizeof(tuple.ipv6.daddr));
		tuple.ipv6.sport = work->entry.dport;
		tuple.ipv6.dport = work->entry.sport;
	} else {
		tuple.ipv4.saddr = *(__be32 *)work->entry.daddr;
		tuple.ipv4.daddr = *(__be32 *)work->entry.saddr;
		tuple.ipv4.sport = work->entry.dport;
		tuple.ipv4.dport = work->entry.sport;
	}
	if (work->key.protocol == IPPROTO_TCP)
		return snat_tcp_socket(skb, &tuple, size);
	if (work->key.protocol == IPPROTO_UDP)
		return snat_udp_socket(skb, &tuple, size);
	return SNAT_NO_SOCKET;
}

/* snat_claim stores the flow in key and entry, unless its source belongs to a socket of the node or to another flow. */
static __always_inline verdict snat_claim(struct __sk_buff *skb, __u32 family, int is_node_address)
{
	return is_node_address && snat_socket(skb, family) != SNAT_NO_SOCKET ? STEP_IN_USE : nat_create(family);
}

/* snat_claim_random is snat_claim for a random source port of the range. It is a separate function, so that the verifier checks it once. */
__attribute__((noinline)) int snat_claim_random(struct __sk_buff *skb, __u32 family)
{
	__u32 count = nat_port_last - nat_port_first + 1;
	struct nat_work *work = nat_work();

	if (!work || !count || !nat_has_ports(work->key.protocol))
		return STEP_IN_USE;
	work->entry.sport = bpf_htons(nat_port_first + bpf_get_prandom_u32() % count);
	if (l4_is_icmp(work->key.protocol))
		work->entry.dport = work->entry.sport;
	return snat_claim(skb, family, 1);
}

/* snat_create stores the flow in key and entry. The flow keeps its source port if it may use it and no other flow or socket does; a flow that gets an address of
 * the node in place of its own must also have a port of the range. */
__attribute__((noinline)) int snat_create(struct __sk_buff *skb, __u32 family)
{
	struct nat_work *work = nat_work();
	int is_node_address;
	verdict v = STEP_IN_USE;

	if (!work)
		return DROP(FILE_SNAT, REASON_CT_INSERT);
	is_node_address = work->entry.flags & (NAT_MASQUERADE | NAT_REDIRECT);
	/* Nodes trust packets of other nodes in the tunnel: no other sender may reach it under the address of a node. */
	if (is_node_address && tunnel_port && work->key.protocol == IPPROTO_UDP && work->entry.dport == bpf_htons(tunnel_port))
		return DROP(FILE_SNAT, REASON_ENCAPSULATED);
	if (!is_node_address || !nat_has_ports(work->key.protocol) || snat_in_range(work->entry.sport))
		v = snat_claim(skb, family, is_node_address);
	for (int i = 0; i < SNAT_TRIES && v == STEP_IN_USE; i++)
		v = snat_claim_random(skb, family);
	if (v != STEP_IN_USE)
		return v;
	ct_signal(NAT_SIGNAL + family, work->entry.endpoint);
	return DROP(FILE_SNAT, REASON_NAT_NO_MAPPING);
}
