/* Delivery of what a pod of another node that is met by routes sends to a pod here. A packet is changed only after all checks: whatever is unusual, or must not
 * arrive, stays as it came, and the stack decides. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "deliver_in.h"
#include "direct.h"
#include "endpoint.h"
#include "goes_on.h"
#include "ipv4.h"
#include "ipv6.h"
#include "packet.h"
#include "reasons.h"
#include "whole.h"

/* direct_target returns the pod that a packet is for; NULL when it is for none, does not fit, or is of no pod to which routes lead. */
static __always_inline struct endpoint_facts *direct_target(struct __sk_buff *skb, const struct whole *packet)
{
	struct endpoint_facts *facts;
	struct endpoint_ref *ref;
	__u32 mtu = 0;

	if (!(ref = bpf_map_lookup_elem(&bpf_endpoints, &packet->to)) || (ref->flags & ADDRESS_HOST) || !direct_node(&packet->from) ||
	    !(facts = endpoint_by_id(ref->id)))
		return NULL;
	return bpf_check_mtu(skb, facts->ifindex, &mtu, 0, 0) < 0 || packet->segment > mtu ? NULL : facts;
}

/* direct_returns reports whether the node reaches the source of a packet by the device by which the packet came. So the stack would take it however
 * strictly it filters by the reverse path, and it has no address of this node. */
__attribute__((noinline)) int direct_returns(struct __sk_buff *skb, const struct whole *packet)
{
	struct bpf_fib_lookup fib = {};

	if (!packet)
		return 0;
	direct_ask(skb, &fib, packet, &packet->to, &packet->from);
	return direct_answered(bpf_fib_lookup(skb, &fib, sizeof(fib), 0)) && fib.ifindex == skb->ifindex;
}

/* direct_hop takes one hop from a packet that was received. Its own function, so that the verifier walks once through what follows. */
__attribute__((noinline)) int direct_hop(struct __sk_buff *skb, __u32 family)
{
	if (family != 6)
		return ipv4_hop(skb);
	bpf_csum_update(skb, bpf_htons(0xfffe)); /* of a sum over the whole packet that a device has made; in IPv4 the checksum makes up for the TTL */
	return ipv6_hop(skb);
}

/* direct_receive delivers a packet to the pod that it is for: one that changes nothing about an established flow straight into the namespace of the pod, and
 * with established 0 any other, whose program judges it as if it came from the stack. PASS for the rest, which stays as it is. */
__attribute__((noinline)) int direct_receive(struct __sk_buff *skb, int established)
{
	struct endpoint_facts *facts;
	struct whole packet = {};
	verdict v;

	if (link_header != ETH_HLEN || skb->pkt_type != PACKET_HOST || !direct_forwards() || !whole_read(skb, &packet))
		return PASS;
	if (!(facts = direct_target(skb, &packet)) || !direct_returns(skb, &packet))
		return PASS;
	if (established && !goes_on(skb, &packet, facts, 0, IDENTITY_UNKNOWN))
		return PASS;
	if ((v = direct_hop(skb, packet.family)) != CONTINUE)
		return v;
	return deliver_in(skb, facts, established);
}
