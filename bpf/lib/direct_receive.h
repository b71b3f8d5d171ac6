/* Delivery of packets that pods of other nodes send by routes to pods on this node. A packet changes only after all checks: packets that are unusual, or must
 * not arrive, stay unchanged, and the stack handles them. */
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
#include "established.h"
#include "evaluate.h"
#include "ipv4.h"
#include "ipv6.h"
#include "masquerade_maps.h"
#include "packet.h"
#include "path_cache.h"
#include "reasons.h"
#include "whole.h"

/* direct_endpoint returns the pod that has the destination; NULL when there is none, the packet does not fit, or no routes lead to the pod of its source. */
static __always_inline struct endpoint_facts *direct_endpoint(struct __sk_buff *skb, const struct whole *packet)
{
	__u32 mtu = 0, ifindex = skb->ifindex;
	struct addr_key addr = packet->to; /* helpers of Linux 6.1 take no key from the memory of a caller */
	struct endpoint_facts *facts;
	struct endpoint_ref *ref;

	if (!bpf_map_lookup_elem(&netdevs, &ifindex) || !(ref = bpf_map_lookup_elem(&bpf_endpoints, &addr)) || (ref->flags & ADDRESS_HOST))
		return NULL;
	addr = packet->from;
	if (!direct_node(&addr) || !(facts = endpoint_by_id(ref->id)))
		return NULL;
	return bpf_check_mtu(skb, facts->ifindex, &mtu, 0, 0) < 0 || packet->segment > mtu ? NULL : facts;
}

/* direct_returns reports whether the route to the source of a packet uses the device on which the packet arrived. Then even a strict reverse path filter of the
 * stack accepts the packet, and its source is no address of this node. */
__attribute__((noinline)) int direct_returns(struct __sk_buff *skb, const struct whole *packet)
{
	struct bpf_fib_lookup fib = {};

	if (!packet)
		return 0;
	direct_fib(skb, &fib, packet, &packet->to, &packet->from);
	return direct_found(bpf_fib_lookup(skb, &fib, sizeof(fib), 0)) && fib.ifindex == skb->ifindex;
}

/* direct_hop decrements the TTL of a received packet. It is a separate function, so that the verifier checks the code after it once. */
__attribute__((noinline)) int direct_hop(struct __sk_buff *skb, __u32 family)
{
	if (family != 6)
		return ipv4_hop(skb);
	bpf_csum_update(skb, bpf_htons(0xfffe)); /* of a sum over the whole packet that a device has made; in IPv4 the checksum makes up for the TTL */
	return ipv6_hop(skb);
}

/* direct_look_up_receiver stores the pod that gets a packet. It reports whether there is one. */
__attribute__((noinline)) int direct_look_up_receiver(struct __sk_buff *skb, const struct path_work *work, struct path *path)
{
	struct endpoint_facts *facts;
	__u32 revision;

	if (!work || !path || !(facts = direct_endpoint(skb, &work->packet)))
		return 0;
	revision = path_begin(facts);
	if (!has_address(facts, &work->packet.to) || !direct_returns(skb, &work->packet))
		return 0;
	path_fill(path, &work->key, work->packet.segment, facts->id, revision);
	path_publish(path, PATH_RECEIVE);
	return 1;
}

/* direct_receive delivers a packet to its pod. With established 1 it puts a packet that changes nothing about an established flow straight into the pod's
 * namespace; with 0 it sends any other to the pod's program, which evaluates it like a packet from the stack. PASS for all others, which stay unchanged. */
__attribute__((noinline)) int direct_receive(struct __sk_buff *skb, int established)
{
	struct path_work *work = path_work();
	struct endpoint_facts *facts;
	struct path *path;
	verdict v;

	if (!work || link_header != ETH_HLEN || skb->pkt_type != PACKET_HOST || !direct_forwards() || !path_read(skb, work, PATH_RECEIVE) ||
	    !(path = path_slot(&work->key)))
		return PASS;
	if (!(facts = path_endpoint(path, &work->key, work->packet.segment)) &&
	    (!direct_look_up_receiver(skb, work, path) || !(facts = endpoint_by_id(path->endpoint))))
		return PASS;
	if (established && !established_passes(skb, &work->packet, facts, 0, IDENTITY_UNKNOWN))
		return PASS;
	if ((v = direct_hop(skb, work->packet.family)) != CONTINUE)
		return v;
	return deliver_in(skb, facts, established);
}
