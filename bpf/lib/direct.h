/* The path of packets between pods of different nodes that routes connect: past the stacks of both nodes, by the routes of both. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "endpoint.h"
#include "ipcache.h"
#include "nodes.h"
#include "protocol.h"
#include "reasons.h"
#include "route.h"
#include "whole.h"

/* 1 when there is a tunnel, and programs forward packets between pods and pods of nodes that are reached past the tunnel. */
volatile const __u32 direct_beside_tunnel = 0;

#define DIRECT_TOS_SHIFT 20 /* of the traffic class in the first word of an IPv6 header */

/* direct_possible reports whether slots of nodes may say that programs forward packets between pods of different nodes without a tunnel. */
static __always_inline int direct_possible(void) { return !tunnel_port || direct_beside_tunnel; }

/* direct_forwards reports whether programs do so now: no hook of a previous generation may be attached, because it would leave the replies to the stack, whose
 * connection tracking would see only them and treat them as invalid. */
static __always_inline int direct_forwards(void)
{
	return direct_possible() && protocol_written() >= (tunnel_port ? PROTOCOL_HYBRID : PROTOCOL_DIRECT);
}

/* direct_node returns the node of a pod to which routes lead, NULL for other addresses. The stack handles packets for nodes themselves, because its sockets
 * serve them. */
static __always_inline struct node *direct_node(const struct addr_key *addr)
{
	struct ipcache_entry *entry = bpf_map_lookup_elem(&ipcache, addr);
	struct node *node;
	__u32 id;

	if (!entry || identity_is_remote_node(entry->identity))
		return NULL;
	id = entry->node;
	if (id == NODE_THIS || !(node = bpf_map_lookup_elem(&nodes, &id)))
		return NULL;
	return node->mode == NODE_DIRECT ? node : NULL;
}

/* direct_fib fills in the parameters of a FIB lookup from one end of a packet to the other, for a packet that arrives on the device of this one. */
static __always_inline void direct_fib(struct __sk_buff *skb, struct bpf_fib_lookup *fib, const struct whole *packet, const struct addr_key *from,
				       const struct addr_key *to)
{
	fib->ifindex = skb->ifindex;
	fib->l4_protocol = packet->protocol;
	if (packet->family == 6) {
		fib->family = FAMILY_IPV6;
		fib->flowinfo = bpf_htonl((__u32)packet->tos << DIRECT_TOS_SHIFT);
		__builtin_memcpy(fib->ipv6_src, from->addr, sizeof(fib->ipv6_src));
		__builtin_memcpy(fib->ipv6_dst, to->addr, sizeof(fib->ipv6_dst));
		return;
	}
	fib->family = FAMILY_IPV4;
	fib->tos = packet->tos;
	fib->ipv4_src = *(const __be32 *)from->addr;
	fib->ipv4_dst = *(const __be32 *)to->addr;
}

/* direct_found reports whether the FIB lookup found a route. If the neighbour's link address is unknown, the kernel resolves it when the packet is sent. */
static __always_inline int direct_found(long found) { return found == BPF_FIB_LKUP_RET_SUCCESS || found == BPF_FIB_LKUP_RET_NO_NEIGH; }
