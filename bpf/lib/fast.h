/* The fast path of pods, for packets that change nothing about their flow. Every unusual packet is left to the slow path, which includes all checks of the fast
 * path, and drops packets for its own reasons. */
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
#define FAST_STACK (-2) /* the packet is passed to the stack, or past it to another node */

/* 0: the slow path handles every packet. */
volatile const __u32 fast_path = 1;

/* The first fields of TCP and UDP headers. */
struct fast_ports {
	__be16 sport;
	__be16 dport;
	__u8 numbers[9];
	__u8 tcp_flags;
};

#define FAST_TCP_LENGTH 20
#define FAST_UDP_LENGTH 8

/* fast_l4 reads the ports of a packet with length bytes after its IP header. It reports whether the packet may take the fast path. */
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

/* A packet that may take the fast path. */
struct fast {
	void *frame;
	void *ip;
	struct l4 l4;
	__u32 check; /* of its key */
	__u32 second;
};

/* The low half is the result of ct_now in the jiffies of the high half; 0 before the first read. */
volatile __u64 fast_clock;

/* fast_now returns ct_now, read once in two jiffies: the coarse clock advances with jiffies. */
static __always_inline __u32 fast_now(void)
{
	__u32 jiffies = bpf_jiffies64() | 1;
	__u64 clock = fast_clock;

	if (clock >> 32 != jiffies) {
		clock = (__u64)jiffies << 32 | ct_now();
		fast_clock = clock;
	}
	return clock;
}

/* fast_destination returns the destination of a packet as a service key. */
static __always_inline struct service_key fast_destination(const struct fast *packet, const __u8 family)
{
	struct service_key to = { .port = packet->l4.dport, .protocol = packet->l4.protocol };

	if (family == 6)
		to.addr = addr_key_ipv6(&((const struct ipv6hdr *)packet->ip)->daddr);
	else
		to.addr = addr_key_ipv4(((const struct iphdr *)packet->ip)->daddr);
	return to;
}

/* fast_without_reply finds the flow of a datagram that has no reply yet: one-way UDP is never established. The look-up is repeated for each datagram, so a service
 * that is created meanwhile gets the next one. */
static __always_inline struct ct_entry *fast_without_reply(const struct fast *packet, const union ct_key *key, const __u8 family)
{
	struct service_key to = fast_destination(packet, family);
	struct ct_entry *entry;

	entry = family == 6 ? bpf_map_lookup_elem(&ct_new6, &key->v6) : bpf_map_lookup_elem(&ct_new4, &key->v4);
	if (!entry || (entry->flags & CT_REPLIED) || ct_end(entry, packet->second) || bpf_map_lookup_elem(&services, &to))
		return NULL;
	return entry;
}

/* fast_epochs returns the epochs that the entry of a packet's flow must have. */
static __always_inline __u32 fast_epochs(const struct fast *packet, const struct ct_entry *entry, const __u8 family)
{
	struct service_key to;

	if (ct_path(entry) == PATH_PEER)
		return epochs_of(NULL, 1);
	to = fast_destination(packet, family);
	return epochs_of(&to.addr, 0);
}

/* fast_is_established reports whether the packet changes nothing about a flow. */
static __always_inline int fast_is_established(const struct fast *packet, const struct ct_entry *entry, __u32 now, const __u8 family)
{
	__u32 flags = entry->flags;

	if (entry->check != packet->check || ct_expired(entry, now) || (flags & (CT_TRANSLATED | CT_RESET | CT_BY_TUNNEL)))
		return 0;
	if (packet->l4.protocol == IPPROTO_TCP && (!(flags & CT_ESTABLISHED) || (flags & CT_CLOSING) == (CT_INITIATOR_FIN | CT_RESPONDER_FIN)))
		return 0;
	return entry->epochs == fast_epochs(packet, entry, family);
}

_Static_assert(__builtin_offsetof(struct endpoint_facts, host_mac) == __builtin_offsetof(struct endpoint_facts, pod_mac) + ETH_ALEN,
	       "as the addresses of a frame to the pod");

/* fast_addressed reports whether an endpoint sent a frame to its host end. The words with the addresses include two more bytes, which are ignored. */
static __always_inline int fast_addressed(const void *frame, const struct endpoint_facts *self)
{
	const void *pod = self->pod_mac, *host = self->host_mac;
	__u64 destination = *(const word *)frame ^ *(const word *)host;
	__u64 source = *(const word *)(frame + ETH_ALEN - 2) ^ *(const word *)(pod - 2);

	return !(destination << 16 | source >> 16);
}

/* fast_address writes the MAC addresses of a frame to an endpoint. */
static __always_inline void fast_address(void *frame, const struct endpoint_facts *to)
{
	const void *from = to->pod_mac;

	*(word *)frame = *(const word *)from;
	*(half_word *)(frame + 8) = *(const half_word *)(from + 8);
}

/* fast_sender returns the endpoint that sends into a flow, when the endpoint is behind the link and has the revision by which the flow was evaluated. The
 * endpoint then has the source address of the packet, because the key of the flow contains it. */
static __always_inline const struct endpoint_facts *fast_sender(struct __sk_buff *skb, const struct ct_entry *entry, __u32 second)
{
	__u32 own = ct_end(entry, second);
	const struct endpoint_facts *self = endpoint_by_id(ct_end_id(entry, own));

	if (!self || self->ifindex != skb->ifindex || self->revision != ct_end_revision(entry, own))
		return NULL;
	return self;
}

/* fast_peer returns the endpoint that receives packets of a flow, NULL when its facts have changed. */
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
	ct_account(entry, skb->len, metrics_count(REASON_FORWARDED, DIRECTION_EGRESS, skb->len));
}

/* fast_hop decrements the TTL or the hop limit; it returns 0 when that is at most 1. */
static __always_inline int fast_hop(void *header, const __u8 family)
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

/* fast_stack returns the action for a packet that the stack forwards. The step that sends to other nodes is not needed for an address that only this node or no
 * node has: when this changes, the epochs of the flow change as well. */
static __always_inline int fast_stack(const struct ct_entry *entry, __u32 second)
{
	__u32 peer = ct_end_identity(entry, !ct_end(entry, second));

	return peer == IDENTITY_HOST || peer == world_ipv4 || peer == world_ipv6 ? TC_ACT_OK : FAST_STACK;
}

/* fast_send sends a packet to the stack, or into the pod of the peer. It returns the action, FAST_STACK, or NOT_FAST with the packet unchanged. */
static __always_inline int fast_send(struct __sk_buff *skb, const struct fast *packet, const union ct_key *key, const __u8 family)
{
	struct ct_entry *entry = ct_established(key, family);
	const struct endpoint_facts *self, *peer;
	__u32 now = fast_now();
	int action;

	if (!entry && packet->l4.protocol == IPPROTO_UDP)
		entry = fast_without_reply(packet, key, family);
	if (!entry || !fast_is_established(packet, entry, now, family))
		return NOT_FAST;
	if (!(self = fast_sender(skb, entry, packet->second)) || !fast_addressed(packet->frame, self))
		return NOT_FAST;
	if (ct_path(entry) == PATH_STACK) {
		deliver_stack(skb, self);
		action = fast_stack(entry, packet->second);
	} else {
		if (!(peer = fast_peer(entry, packet->second)) || *(volatile __u32 *)&entry->check != packet->check || !fast_hop(packet->ip, family))
			return NOT_FAST; /* compared again: meanwhile the memory of the entry may have been reused for another flow */
		fast_address(packet->frame, peer);
		skb->mark = 0;
		metrics_count(REASON_FORWARDED, DIRECTION_INGRESS, skb->len);
		action = bpf_redirect_peer(peer->ifindex, 0);
	}
	fast_count(skb, entry, packet->l4.protocol, now);
	return action;
}

/* Separate functions, so that the verifier checks them once, and so that a packet off the fast path does not pay for their stack. */
__attribute__((noinline)) int fast4(struct __sk_buff *skb)
{
	void *data = PACKET_FIELD(skb, data), *end = PACKET_FIELD(skb, data_end);
	struct iphdr *ip = data + ETH_HLEN;
	struct fast packet = { .frame = data, .ip = ip };
	union ct_key key;
	__u32 length;

	if (data + ETH_HLEN + sizeof(*ip) > end)
		return NOT_FAST;
	length = bpf_ntohs(ip->tot_len);
	if (*(__u8 *)ip != 0x45 || length < sizeof(*ip) || ETH_HLEN + length > skb->len ||
	    (ip->frag_off & bpf_htons(IPV4_MORE_FRAGMENTS | IPV4_FRAGMENT_OFFSET)))
		return NOT_FAST;
	packet.l4.protocol = ip->protocol;
	if (!fast_l4(&packet.l4, (void *)(ip + 1), length - sizeof(*ip), end))
		return NOT_FAST;
	packet.second = ct_key4_make(&key, &ip->saddr, &ip->daddr, &packet.l4);
	packet.check = ct_check(&key, sizeof(key.v4) / 8);
	return fast_send(skb, &packet, &key, 4);
}

__attribute__((noinline)) int fast6(struct __sk_buff *skb)
{
	void *data = PACKET_FIELD(skb, data), *end = PACKET_FIELD(skb, data_end);
	struct ipv6hdr *ip = data + ETH_HLEN;
	struct fast packet = { .frame = data, .ip = ip };
	union ct_key key;
	__u32 length;

	if (data + ETH_HLEN + sizeof(*ip) > end)
		return NOT_FAST;
	length = bpf_ntohs(ip->payload_len);
	if (ip->version != 6 || ETH_HLEN + sizeof(*ip) + length > skb->len)
		return NOT_FAST;
	packet.l4.protocol = ip->nexthdr;
	if (!fast_l4(&packet.l4, (void *)(ip + 1), length, end))
		return NOT_FAST;
	packet.second = ct_key6_make(&key, &ip->saddr, &ip->daddr, &packet.l4);
	packet.check = ct_check(&key, sizeof(key.v6) / 8);
	return fast_send(skb, &packet, &key, 6);
}

/* fast returns the action for a packet that a pod sends, FAST_STACK or NOT_FAST. */
static __always_inline int fast(struct __sk_buff *skb)
{
	if (!fast_path || skb->vlan_present)
		return NOT_FAST;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		return fast4(skb);
	return skb->protocol == bpf_htons(ETH_P_IPV6) ? fast6(skb) : NOT_FAST;
}
