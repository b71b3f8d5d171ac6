/* Sending packets of a pod to a pod of another node by routes. Unusual packets are passed to the stack unchanged. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "direct.h"
#include "endpoint.h"
#include "evaluate.h"
#include "ipv4.h"
#include "ipv6.h"
#include "masquerade_maps.h"
#include "reasons.h"
#include "route.h"
#include "whole.h"

/* direct_leads reports whether the destination is a pod of another node to which routes lead, and sets the MTU of the path. */
static __always_inline int direct_leads(struct direct *out)
{
	struct node *node = direct_node(&out->packet.to);

	if (!node || bpf_map_lookup_elem(&bpf_endpoints, &out->packet.to))
		return 0;
	out->mtu = node->mtu;
	return 1;
}

/* direct_route finds the route of a packet: CONTINUE, STEP_TOO_BIG with out->mtu, or PASS when there is none that programs can use. */
__attribute__((noinline)) int direct_route(struct __sk_buff *skb, struct direct *out)
{
	struct bpf_fib_lookup fib = {};
	__be16 ports[2] = {};
	long found;

	if (!out)
		return PASS;
	if (out->mtu && out->packet.segment > out->mtu)
		return STEP_TOO_BIG;
	direct_fib(skb, &fib, &out->packet, &out->packet.from, &out->packet.to);
	if (out->packet.protocol == IPPROTO_TCP || out->packet.protocol == IPPROTO_UDP)
		bpf_skb_load_bytes(skb, whole_at(&out->packet), ports, sizeof(ports));
	fib.sport = ports[0];
	fib.dport = ports[1];
	fib.tot_len = out->packet.segment;
	found = bpf_fib_lookup(skb, &fib, sizeof(fib), 0);
	if (found == BPF_FIB_LKUP_RET_FRAG_NEEDED) {
		out->mtu = fib.mtu_result;
		return STEP_TOO_BIG;
	}
	if (!direct_found(found))
		return PASS;
	out->ifindex = fib.ifindex;
	out->hop.nh_family = fib.family;
	__builtin_memcpy(out->hop.ipv6_nh, fib.ipv6_dst, sizeof(out->hop.ipv6_nh));
	return CONTINUE;
}

/* direct_send sends a packet of a pod to a pod of another node. It returns REDIRECTED, PASS when the stack must send the packet, or a drop. If the packet is
 * too long, that is a drop and *mtu is the length that fits. netdev_egress processes the packet like one from the stack, so masquerading is the same. */
__attribute__((noinline)) int direct_send(struct __sk_buff *skb, const struct endpoint_facts *self, __u32 *mtu)
{
	struct direct out = {};
	verdict v;

	if (!self || !mtu || !direct_forwards() || !whole_read(skb, &out.packet) || out.packet.padded ||
	    !has_address(self, &out.packet.from) || !direct_leads(&out))
		return PASS;
	v = direct_route(skb, &out);
	if (v == STEP_TOO_BIG) {
		if (!whole_is_rejected(&out.packet, out.mtu))
			return PASS;
		*mtu = out.mtu;
		return DROP_REJECT(FILE_DIRECT_SEND, REASON_TOO_BIG);
	}
	if (v != CONTINUE || !bpf_map_lookup_elem(&netdevs, &out.ifindex))
		return PASS;
	if ((v = out.packet.family == 6 ? ipv6_hop(skb) : ipv4_hop(skb)) != CONTINUE)
		return v;
	skb->priority = 0; /* that of a pod's socket is no business of the node's queues */
	return bpf_redirect_neigh(out.ifindex, &out.hop, sizeof(out.hop), 0) == REDIRECTED ? REDIRECTED : DROP(FILE_DIRECT_SEND, REASON_WRITE);
}
