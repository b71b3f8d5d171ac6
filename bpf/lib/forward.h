/* Forwarding, past the node's stack, of packets of translated flows between external clients and backends on other nodes, in both
 * directions. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "flow.h"
#include "l4.h"
#include "nat.h"
#include "nat_error.h"
#include "netdev.h"
#include "reasons.h"
#include "route.h"

/* forward translates the addresses and ports of a packet and sends it out of the node. */
static __always_inline verdict forward(struct __sk_buff *skb, struct flow *flow)
{
	verdict v;

	if (flow->ttl <= 1)
		return DROP_REJECT(FILE_FORWARD, REASON_HOPS);
	v = route_lookup(skb, flow->family, route_length(skb, flow));
	if (v == STEP_TOO_BIG)
		return DROP_REJECT(FILE_FORWARD, REASON_TOO_BIG);
	if (v != CONTINUE || (v = netdev_rewrite(skb, flow)) != CONTINUE)
		return v;
	return route_send(skb, flow->family);
}

/* forward_error does the same with an ICMP error about a packet of such a flow. PASS when it is about another packet; the packet is then unchanged. */
static __always_inline verdict forward_error(struct __sk_buff *skb, struct flow *flow)
{
	__u32 inner_at = flow->at + ICMP_LENGTH, length = flow->end - link_header, ttl = flow->ttl, redirect;
	struct nat_work *work;
	verdict v;

	if (!netdev_inner(skb, flow, NAT_FROM_OUTSIDE) || !(work = nat_work()))
		return PASS;
	redirect = work->entry.flags & NAT_REDIRECT;
	if (redirect && ttl <= 1)
		return DROP(FILE_FORWARD, REASON_HOPS);
	if (redirect && (v = route_lookup(skb, flow->family, length)) != CONTINUE)
		return v == STEP_TOO_BIG ? DROP(FILE_FORWARD, REASON_TOO_BIG) : v;
	if ((v = nat_rewrite_error(skb, flow->family, inner_at, flow->at, flow->end)) != CONTINUE)
		return v;
	return redirect ? route_send(skb, flow->family) : PASS;
}
