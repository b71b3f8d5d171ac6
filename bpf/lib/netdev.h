/* The code that both hooks of a device that leads out share. Packets that the hooks do not handle belong to the node's stack or the network, and
 * pass. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "conntrack.h"
#include "endpoint.h"
#include "eth.h"
#include "flow.h"
#include "fragments.h"
#include "ipv4.h"
#include "ipv6.h"
#include "l4.h"
#include "masquerade_maps.h"
#include "nat.h"
#include "nat_find.h"
#include "nat_rewrite.h"
#include "reasons.h"
#include "related.h"

/* Values in place of an endpoint in frags: received packets and sent packets are different ones. */
#define NETDEV_RECEIVES 0
#define NETDEV_SENDS 0xffff

static __noinline verdict netdev_ipv4(struct __sk_buff *skb, struct flow *flow)
{
	struct ipv4_packet packet;

	if (ipv4_parse(skb, &packet) != CONTINUE || ipv4_is_group(packet.daddr))
		return PASS;
	flow_of_ipv4(flow, &packet);
	return CONTINUE;
}

static __noinline verdict netdev_ipv6(struct __sk_buff *skb, struct flow *flow)
{
	struct ipv6_packet packet;

	if (ipv6_parse(skb, &packet) != CONTINUE || ipv6_skip_extensions(skb, &packet) != CONTINUE || ipv6_is_group(&packet.daddr))
		return PASS;
	flow_of_ipv6(flow, &packet);
	return CONTINUE;
}

/* netdev_read reads the addresses and ports of a packet. */
static __always_inline verdict netdev_read(struct __sk_buff *skb, struct flow *flow)
{
	__be16 proto;
	verdict v = PASS;

	if (eth_parse(skb, &proto) != CONTINUE)
		return PASS; /* a packet of a VLAN arrives again at the VLAN device */
	if (proto == bpf_htons(ETH_P_IP))
		v = netdev_ipv4(skb, flow);
	else if (proto == bpf_htons(ETH_P_IPV6))
		v = netdev_ipv6(skb, flow);
	if (v != CONTINUE)
		return v;
	if (flow->fragment == FRAGMENT_LATER)
		return fragment_recall(flow) == CONTINUE ? CONTINUE : STEP_UNKNOWN_FRAGMENT;
	if (l4_read(skb, flow->at, flow->end, 0, &flow->l4) != CONTINUE)
		return PASS;
	if (l4_is_icmp(flow->l4.protocol) && flow->l4.role != L4_ERROR && !l4_has_identifier(&flow->l4))
		return PASS; /* neighbour discovery, for example */
	return CONTINUE;
}

/* netdev_fits reports whether an ICMP request or reply has the direction of the entry with its identifier: each end may send requests with the same
 * identifier. */
static __always_inline int netdev_fits(__u32 role, __u32 flags)
{
	if (role == L4_PLAIN)
		return 1;
	return !(flags & NAT_REPLY) == (role == L4_REQUEST);
}

/* netdev_changes reports whether the entry changes the packet: connections of the node itself stay unchanged. */
static __always_inline int netdev_changes(const struct nat_work *work)
{
	const struct nat_entry6 *entry = &work->entry;
	const struct nat_key6 *key = &work->key;

	return word_at(key->saddr) != word_at(entry->saddr) || word_at(key->saddr + 8) != word_at(entry->saddr + 8) ||
	       word_at(key->daddr) != word_at(entry->daddr) || word_at(key->daddr + 8) != word_at(entry->daddr + 8) ||
	       key->sport != entry->sport || key->dport != entry->dport;
}

/* netdev_known looks up the flow of a packet, and reports whether there is one. */
__attribute__((noinline)) int netdev_known(const struct flow *flow, enum nat_place place)
{
	struct nat_work *work = nat_work();

	if (!flow || !work)
		return 0;
	nat_key(work, &flow->from, &flow->to, flow->l4.sport, flow->l4.dport, flow->l4.protocol, place);
	return nat_find(flow->family, flow->l4.tcp_flags) && netdev_fits(flow->l4.role, work->entry.flags);
}

/* netdev_rewrite translates a packet by the entry of its flow. */
static __always_inline verdict netdev_rewrite(struct __sk_buff *skb, const struct flow *flow)
{
	verdict v = nat_rewrite(skb, flow->family, flow->fragment == FRAGMENT_LATER ? 0 : flow->at);

	if (v == CONTINUE && flow->fragment == FRAGMENT_FIRST)
		fragment_remember(flow);
	return v;
}

/* netdev_inner looks up the flow of the inner packet of an ICMP error, and reports whether there is one: the error belongs to the sender of the inner packet.
 * Afterwards flow describes the inner packet. */
__attribute__((noinline)) int netdev_inner(struct __sk_buff *skb, struct flow *flow, enum nat_place place)
{
	struct nat_work *work = nat_work();
	struct addr_key to;
	verdict v;

	if (!flow || !work)
		return 0;
	to = flow->to;
	flow->at += ICMP_LENGTH;
	v = flow->family == 6 ? embedded_ipv6(skb, flow) : embedded_ipv4(skb, flow);
	if (v != CONTINUE || !same_address(&flow->from, &to))
		return 0;
	if (l4_read(skb, flow->at, flow->end, 1, &flow->l4) != CONTINUE || flow->l4.role == L4_ERROR)
		return 0;
	nat_key(work, &flow->to, &flow->from, flow->l4.dport, flow->l4.sport, flow->l4.protocol, place);
	if (!nat_peek(flow->family))
		return 0;
	/* The inner packet had the other direction. */
	return netdev_fits(flow->l4.role == L4_PLAIN ? L4_PLAIN : flow->l4.role == L4_REQUEST ? L4_REPLY : L4_REQUEST, work->entry.flags) &&
	       netdev_changes(work);
}

/* netdev_source sets the source of the entry of the work to the address under which packets leave by a device. It reports whether the device has an address of
 * the family. */
__attribute__((noinline)) int netdev_source(__u32 ifindex, __u32 family)
{
	struct netdev *dev = bpf_map_lookup_elem(&netdevs, &ifindex);
	struct nat_work *work = nat_work();

	return dev && work ? nat_set_source(work, family, dev->ipv4, (const word *)dev->ipv6) : 0;
}
