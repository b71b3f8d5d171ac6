/* ICMP errors: they belong only to the flow of their inner packet. */
#pragma once

#include <linux/bpf.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "conntrack.h"
#include "endpoint.h"
#include "flow.h"
#include "ipv4.h"
#include "ipv6.h"
#include "l4.h"
#include "reasons.h"

static __always_inline verdict embedded_ipv4(struct __sk_buff *skb, struct flow *flow)
{
	struct iphdr ip;

	if (bpf_skb_load_bytes(skb, flow->at, &ip, sizeof(ip)))
		return DROP(FILE_RELATED, REASON_TRUNCATED);
	if (ip.version != 4 || ip.ihl < 5 || (ip.frag_off & bpf_htons(IPV4_FRAGMENT_OFFSET)))
		return DROP(FILE_RELATED, REASON_CT_UNKNOWN);
	flow->from = addr_key_ipv4(ip.saddr);
	flow->to = addr_key_ipv4(ip.daddr);
	flow->at += ip.ihl * 4;
	flow->l4 = (struct l4){ .protocol = ip.protocol };
	return CONTINUE;
}

static __always_inline verdict embedded_ipv6(struct __sk_buff *skb, struct flow *flow)
{
	struct {
		__u8 next;
		__u8 reserved;
		__be16 offset;
		__u32 id;
	} fragment;
	struct ipv6hdr ip;

	if (bpf_skb_load_bytes(skb, flow->at, &ip, sizeof(ip)))
		return DROP(FILE_RELATED, REASON_TRUNCATED);
	if (ip.version != 6)
		return DROP(FILE_RELATED, REASON_CT_UNKNOWN);
	flow->from = addr_key_ipv6(&ip.saddr);
	flow->to = addr_key_ipv6(&ip.daddr);
	flow->at += sizeof(ip);
	flow->l4 = (struct l4){ .protocol = ip.nexthdr };
	if (ip.nexthdr != NEXT_FRAGMENT)
		return CONTINUE;
	/* A "packet too big" error may be about a fragment, too. With other extension headers the ports are unknown, and the packet belongs to no flow. */
	if (bpf_skb_load_bytes(skb, flow->at, &fragment, sizeof(fragment)))
		return DROP(FILE_RELATED, REASON_TRUNCATED);
	if (fragment.offset & bpf_htons(IPV6_FRAGMENT_OFFSET))
		return DROP(FILE_RELATED, REASON_CT_UNKNOWN);
	flow->at += sizeof(fragment);
	flow->l4.protocol = fragment.next;
	return CONTINUE;
}

static __always_inline int same_address(const struct addr_key *a, const struct addr_key *b)
{
	return word_at(a->addr) == word_at(b->addr) && word_at(a->addr + 8) == word_at(b->addr + 8);
}

/* flow_inner sets flow to the flow of the inner packet of an ICMP error. */
__attribute__((noinline)) int flow_inner(struct __sk_buff *skb, struct flow *flow)
{
	verdict v;

	if (!flow)
		return DROP(FILE_RELATED, REASON_CT_UNKNOWN);
	flow->at += ICMP_LENGTH;
	flow->inner_at = flow->at;
	v = flow->family == 6 ? embedded_ipv6(skb, flow) : embedded_ipv4(skb, flow);
	if (v == CONTINUE)
		v = l4_read(skb, flow->at, flow->end, 1, &flow->l4);
	return v;
}

/* flow_related accepts an error about a packet of a flow whose cached verdict is valid, for the sender of that packet. Self must be an end of the flow: a pod
 * may send errors only about packets to the pod itself, while errors from outside may be of any router on the path. Afterwards flow describes the inner
 * packet. */
__attribute__((noinline)) int flow_related(struct __sk_buff *skb, struct flow *flow, const struct endpoint_facts *self)
{
	struct addr_key to;
	verdict v;

	if (!flow || !self)
		return DROP(FILE_RELATED, REASON_CT_UNKNOWN);
	to = flow->to;
	if ((v = flow_inner(skb, flow)) != CONTINUE)
		return v;
	if (!same_address(&flow->from, &to) || flow->l4.role == L4_ERROR)
		return DROP(FILE_RELATED, REASON_CT_UNKNOWN);
	flow_name(flow);
	flow_date(flow, flow->direction == DIRECTION_EGRESS); /* the other way round than the error */
	if (!flow_lookup(flow, ct_now()))
		return DROP(FILE_RELATED, REASON_CT_UNKNOWN);
	/* The receiver of the error sent the inner packet. */
	flow->second = !flow->second;
	return flow_verdict_valid(flow, &flow->entry, self) ? CONTINUE : DROP(FILE_RELATED, REASON_CT_UNKNOWN);
}
