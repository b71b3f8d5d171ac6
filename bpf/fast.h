/* The fast path of pods, for packets that change nothing about their flow. Everything unusual is left to the slow path, which makes every check that is
 * made here as well, and drops packets for its reasons. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "conntrack.h"
#include "deliver.h"
#include "endpoint.h"
#include "eth.h"
#include "flow.h"
#include "ipcache.h"
#include "ipv4.h"
#include "ipv6.h"
#include "l4.h"
#include "metrics.h"
#include "service_maps.h"

#define NOT_FAST (-1)

/* 0 leaves every packet to the slow path. */
volatile const __u32 fast_path = 1;

/* The beginning of TCP and UDP. */
struct fast_ports {
	__be16 sport;
	__be16 dport;
	__u8 numbers[9];
	__u8 tcp_flags;
};

#define FAST_TCP_LENGTH 20
#define FAST_UDP_LENGTH 8

/* fast_l4 reads the ports of a packet with length bytes after its IP header, and reports whether the packet may be fast. */
static __always_inline int fast_l4(struct l4 *l4, const struct fast_ports *ports, __u32 length, const void *end)
{
	if ((const void *)ports + FAST_UDP_LENGTH > end)
		return 0;
	l4->sport = ports->sport;
	l4->dport = ports->dport;
	if (l4->protocol == IPPROTO_UDP)
		return length >= FAST_UDP_LENGTH;
	if (l4->protocol != IPPROTO_TCP || length < FAST_TCP_LENGTH || (const void *)ports + sizeof(*ports) > end)
		return 0;
	return !(ports->tcp_flags & (TCP_SYN | TCP_FIN | TCP_RST));
}

/* What the fast path needs of a packet. */
struct fast {
	union ct_key key;
	struct service_key to; /* where it goes; protocol is that of the packet */
	__u32 check;	       /* of the key */
	__u32 second;
	__u8 family;
};

/* fast_entry finds the flow of a packet, NULL when the packet changes something about it. One-way UDP is never established. */
static __always_inline struct ct_entry *fast_entry(const struct fast *packet, __u32 now)
{
	union ct_key key = packet->key;
	struct ct_entry *entry = ct_established(&key, packet->family);
	__u8 protocol = packet->to.protocol;
	__u32 flags;

	if (!entry && protocol == IPPROTO_UDP) {
		struct service_key to = packet->to;

		entry = packet->family == 6 ? bpf_map_lookup_elem(&ct_new6, &key.v6) : bpf_map_lookup_elem(&ct_new4, &key.v4);
		if (!entry || (entry->flags & CT_REPLIED) || ct_end(entry, packet->second))
			return NULL;
		/* A datagram without a reply is sent again, and a service that begins meanwhile gets it. */
		if (bpf_map_lookup_elem(&services, &to))
			return NULL;
	}
	if (!entry || entry->check != packet->check || ct_expired(entry, now) || entry->epochs != epochs_of(&packet->to.addr, ct_path(entry) == PATH_PEER))
		return NULL;
	flags = entry->flags;
	if (flags & (CT_TRANSLATED | CT_RESET))
		return NULL;
	if (protocol == IPPROTO_TCP && (!(flags & CT_STANDS) || (flags & CT_CLOSING) == (CT_OPENER_FIN | CT_TARGET_FIN)))
		return NULL;
	return entry;
}

/* fast_sender returns the endpoint that sends into a flow, when it is behind the link and its facts are those by which the flow was judged. It then
 * has the source address of the packet, which is in the key of the flow. */
static __always_inline const struct endpoint_facts *fast_sender(struct __sk_buff *skb, const struct ct_entry *entry, __u32 second)
{
	__u32 own = ct_end(entry, second);
	const struct endpoint_facts *self = endpoint_by_id(ct_end_id(entry, own));

	if (!self || self->ifindex != skb->ifindex || self->revision != ct_end_revision(entry, own))
		return NULL;
	return self;
}

/* fast_peer returns the endpoint that receives from a flow, NULL when its facts have changed. */
static __always_inline const struct endpoint_facts *fast_peer(const struct ct_entry *entry, __u32 second)
{
	__u32 other = !ct_end(entry, second);
	const struct endpoint_facts *peer = endpoint_by_id(ct_end_id(entry, other));

	return peer && peer->revision == ct_end_revision(entry, other) ? peer : NULL;
}

/* fast_count updates the timeout and the counters of a flow. */
static __always_inline void fast_count(struct __sk_buff *skb, struct ct_entry *entry, __u8 protocol, __u32 now)
{
	__u32 expires = now + (protocol == IPPROTO_TCP ? ct_tcp_timeout : ct_any_timeout);

	if (entry->expires != expires)
		entry->expires = expires;
	entry->packets++;
	entry->bytes += skb->len;
	metrics_count(REASON_FORWARDED, DIRECTION_EGRESS, skb->len);
}

/* fast_hop decrements the TTL or the hop limit; it returns 0 when that is 1 at most. */
static __always_inline int fast_hop(void *header, __u8 family)
{
	struct ipv6hdr *ipv6 = header;
	struct iphdr *ipv4 = header;
	__u32 sum;

	if (family == 6) {
		if (ipv6->hop_limit <= 1)
			return 0;
		ipv6->hop_limit--;
		return 1;
	}
	if (ipv4->ttl <= 1)
		return 0;
	sum = ipv4->check + bpf_htons(0x0100); /* as ipv4_hop does it */
	ipv4->check = sum + (sum >= 0xffff);
	ipv4->ttl--;
	return 1;
}

/* fast_send sends a packet to the stack, or into the pod of the peer. It returns the action, or NOT_FAST; then the packet is unchanged. */
__attribute__((noinline)) int fast_send(struct __sk_buff *skb, const struct fast *packet)
{
	void *data = PACKET_FIELD(skb, data), *end = PACKET_FIELD(skb, data_end);
	const struct endpoint_facts *self, *peer;
	struct ethhdr *eth = data;
	struct ct_entry *entry;
	__u32 now = ct_now();

	if (!packet || data + ETH_HLEN + sizeof(struct iphdr) > end)
		return NOT_FAST;
	entry = fast_entry(packet, now);
	if (!entry || !(self = fast_sender(skb, entry, packet->second)))
		return NOT_FAST;
	if (!mac_equal(eth->h_source, self->pod_mac) || !mac_equal(eth->h_dest, self->host_mac))
		return NOT_FAST;
	if (ct_path(entry) == PATH_STACK) {
		fast_count(skb, entry, packet->to.protocol, now);
		deliver_stack(skb, self);
		return TC_ACT_OK;
	}
	if (!(peer = fast_peer(entry, packet->second)) || *(volatile __u32 *)&entry->check != packet->check || !fast_hop(eth + 1, packet->family))
		return NOT_FAST; /* the check again: the entry may have become that of another flow meanwhile */
	fast_count(skb, entry, packet->to.protocol, now);
	mac_copy(eth->h_dest, peer->pod_mac);
	mac_copy(eth->h_source, peer->host_mac);
	skb->mark = 0;
	metrics_count(REASON_FORWARDED, DIRECTION_INGRESS, skb->len);
	return bpf_redirect_peer(peer->ifindex, 0);
}

static __always_inline void fast_target(struct fast *packet, const struct l4 *l4, __u8 family)
{
	packet->family = packet->to.addr.family = family;
	packet->to.port = l4->dport;
	packet->to.protocol = l4->protocol;
}

/* fast_ipv4 reads a packet of IPv4, and reports whether it may be fast. */
static __always_inline int fast_ipv4(struct __sk_buff *skb, struct fast *packet)
{
	void *data = PACKET_FIELD(skb, data), *end = PACKET_FIELD(skb, data_end);
	struct iphdr *ip = data + ETH_HLEN;
	struct addr_key from = {};
	struct l4 l4 = {};
	__u32 length;

	if (data + ETH_HLEN + sizeof(*ip) > end)
		return 0;
	length = bpf_ntohs(ip->tot_len);
	if (*(__u8 *)ip != 0x45 || length < sizeof(*ip) || ETH_HLEN + length > skb->len ||
	    (ip->frag_off & bpf_htons(IPV4_MORE_FRAGMENTS | IPV4_FRAGMENT_OFFSET)))
		return 0;
	l4.protocol = ip->protocol;
	if (!fast_l4(&l4, (void *)(ip + 1), length - sizeof(*ip), end))
		return 0;
	*(__be32 *)from.addr = ip->saddr;
	*(__be32 *)packet->to.addr.addr = ip->daddr;
	packet->second = ct_key4_make(&packet->key.v4, from.addr, packet->to.addr.addr, &l4);
	fast_target(packet, &l4, 4);
	packet->check = ct_check(&packet->key, sizeof(packet->key.v4) / 8);
	return 1;
}

/* fast_ipv6 reads a packet of IPv6, and reports whether it may be fast. */
static __always_inline int fast_ipv6(struct __sk_buff *skb, struct fast *packet)
{
	void *data = PACKET_FIELD(skb, data), *end = PACKET_FIELD(skb, data_end);
	struct ipv6hdr *ip = data + ETH_HLEN;
	struct addr_key from;
	struct l4 l4 = {};
	__u32 length;

	if (data + ETH_HLEN + sizeof(*ip) > end)
		return 0;
	length = bpf_ntohs(ip->payload_len);
	if (ip->version != 6 || ETH_HLEN + sizeof(*ip) + length > skb->len)
		return 0;
	l4.protocol = ip->nexthdr;
	if (!fast_l4(&l4, (void *)(ip + 1), length, end))
		return 0;
	from = addr_key_ipv6(&ip->saddr);
	packet->to.addr = addr_key_ipv6(&ip->daddr);
	packet->second = ct_key6_make(&packet->key.v6, from.addr, packet->to.addr.addr, &l4);
	fast_target(packet, &l4, 6);
	packet->check = ct_check(&packet->key, sizeof(packet->key.v6) / 8);
	return 1;
}

/* Functions of their own, so that the verifier walks through them once. */
__attribute__((noinline)) int fast4(struct __sk_buff *skb)
{
	struct fast packet = {};

	return fast_ipv4(skb, &packet) ? fast_send(skb, &packet) : NOT_FAST;
}

__attribute__((noinline)) int fast6(struct __sk_buff *skb)
{
	struct fast packet = {};

	return fast_ipv6(skb, &packet) ? fast_send(skb, &packet) : NOT_FAST;
}

/* fast returns the action for a packet that a pod sends, or NOT_FAST. */
static __always_inline int fast(struct __sk_buff *skb)
{
	if (!fast_path || skb->vlan_present)
		return NOT_FAST;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		return fast4(skb);
	return skb->protocol == bpf_htons(ETH_P_IPV6) ? fast6(skb) : NOT_FAST;
}
