/* Rejections: the sender of a dropped packet gets a TCP reset or an ICMP error, so that it need not wait. The packet itself is rewritten into it. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "clock.h"
#include "endpoint.h"
#include "ipv4.h"
#include "ipv6.h"
#include "l4.h"
#include "rate.h"

/* Limit of resets and ICMP errors in each tick for one endpoint, and for all external senders together: a reply to every packet would make the node a
 * reflector, and would cost it more than the packets do. */
volatile const __u32 reject_rate = 1024;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ENDPOINTS_MAX);
	__type(key, __u32); /* local endpoint id, 0 for external senders */
	__type(value, struct rate);
} reject_rates SEC(".maps");

enum reject_kind {
	REJECT_NO_RECEIVER = 0,  /* no socket or backend receives it */
	REJECT_TOO_BIG = 1, /* it is longer than the path carries */
	REJECT_EXPIRED = 2, /* its TTL has expired */
};

#define REJECT_HOPS 64
#define REJECT_INNER 8 /* bytes behind the IP header; they include the ports */
#define REJECT_INNER_FRAGMENT 16 /* behind the IP header of a fragment; the fragment header precedes the ports */

struct reject_tcp {
	__be16 sport;
	__be16 dport;
	__be32 seq;
	__be32 ack;
	__u8 length; /* in the upper half, in 32-bit words */
	__u8 flags;
	__be16 window;
	__be16 checksum;
	__be16 urgent;
};

struct reject_icmp {
	__u8 type;
	__u8 code;
	__be16 checksum;
	__be32 mtu; /* of the path, or 0 */
};

/* The types and codes of the errors in both families. */
static __always_inline struct reject_icmp reject_ipv4_icmp(enum reject_kind kind, __u32 mtu)
{
	return (struct reject_icmp){
		.type = kind == REJECT_EXPIRED ? 11 : 3,
		.code = kind == REJECT_EXPIRED ? 0 : kind == REJECT_TOO_BIG ? 4 : 3,
		.mtu = bpf_htonl(mtu),
	};
}

static __always_inline struct reject_icmp reject_ipv6_icmp(enum reject_kind kind, __u32 mtu)
{
	return (struct reject_icmp){
		.type = kind == REJECT_EXPIRED ? 3 : kind == REJECT_TOO_BIG ? 2 : 1,
		.code = kind == REJECT_NO_RECEIVER ? 4 : 0,
		.mtu = bpf_htonl(mtu),
	};
}

static __always_inline __be16 reject_fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* reject_reset makes the reset for a segment with this many bytes, by RFC 9293, 3.10.7.1; 0 when no reset is allowed. */
static __always_inline int reject_reset(struct reject_tcp *reset, const struct reject_tcp *segment, __u32 bytes)
{
	if (segment->flags & TCP_RST)
		return 0;
	*reset = (struct reject_tcp){ .sport = segment->dport, .dport = segment->sport, .length = sizeof(*reset) / 4 << 4, .flags = TCP_RST };
	if (segment->flags & TCP_ACK) {
		reset->seq = segment->ack;
		return 1;
	}
	bytes -= (segment->length >> 4) * 4;
	bytes += !!(segment->flags & TCP_SYN) + !!(segment->flags & TCP_FIN);
	reset->ack = bpf_htonl(bpf_ntohl(segment->seq) + bytes);
	reset->flags |= TCP_ACK;
	return 1;
}

/* reject_write replaces the packet, which may be shorter, by the reply. */
static __always_inline int reject_write(struct __sk_buff *skb, const void *answer, const __u32 length)
{
	return !bpf_skb_change_tail(skb, link_header + length, 0) && !bpf_skb_store_bytes(skb, link_header, answer, length, BPF_F_RECOMPUTE_CSUM);
}

static __always_inline int reject_ipv4_tcp(struct __sk_buff *skb, const struct iphdr *ip)
{
	struct {
		struct iphdr ip;
		struct reject_tcp tcp;
	} answer = { .ip = { .version = 4, .ihl = 5, .ttl = REJECT_HOPS, .protocol = IPPROTO_TCP } };
	struct reject_tcp segment;
	__u32 sum;

	if (bpf_skb_load_bytes(skb, link_header + sizeof(*ip), &segment, sizeof(segment)) ||
	    !reject_reset(&answer.tcp, &segment, bpf_ntohs(ip->tot_len) - sizeof(*ip)))
		return 0;
	answer.ip.tot_len = bpf_htons(sizeof(answer));
	answer.ip.saddr = ip->daddr;
	answer.ip.daddr = ip->saddr;
	answer.ip.check = reject_fold(bpf_csum_diff(NULL, 0, (__be32 *)&answer.ip, sizeof(answer.ip), 0));
	sum = bpf_csum_diff(NULL, 0, &answer.ip.saddr, 8, bpf_htons(IPPROTO_TCP + sizeof(answer.tcp)));
	answer.tcp.checksum = reject_fold(bpf_csum_diff(NULL, 0, (__be32 *)&answer.tcp, sizeof(answer.tcp), sum));
	return reject_write(skb, &answer, sizeof(answer));
}

__attribute__((noinline)) int reject_ipv4(struct __sk_buff *skb, enum reject_kind kind, __u32 mtu)
{
	struct {
		struct iphdr ip;
		struct reject_icmp icmp;
		struct iphdr about;
		__u8 quote[REJECT_INNER];
	} answer = { .icmp = reject_ipv4_icmp(kind, mtu) };

	if (bpf_skb_load_bytes(skb, link_header, &answer.about, sizeof(answer.about) + sizeof(answer.quote)))
		return 0;
	if (answer.about.ihl != 5 || (answer.about.frag_off & bpf_htons(IPV4_FRAGMENT_OFFSET)))
		return 0;
	if (ipv4_is_group(answer.about.saddr) || ipv4_is_node_local(answer.about.saddr))
		return 0;
	if (kind == REJECT_NO_RECEIVER && answer.about.protocol == IPPROTO_TCP)
		return reject_ipv4_tcp(skb, &answer.about);
	answer.ip = (struct iphdr){ .version = 4, .ihl = 5, .ttl = REJECT_HOPS, .protocol = IPPROTO_ICMP };
	answer.ip.tot_len = bpf_htons(sizeof(answer));
	answer.ip.saddr = answer.about.daddr;
	answer.ip.daddr = answer.about.saddr;
	answer.ip.check = reject_fold(bpf_csum_diff(NULL, 0, (__be32 *)&answer.ip, sizeof(answer.ip), 0));
	answer.icmp.checksum = reject_fold(bpf_csum_diff(NULL, 0, (__be32 *)&answer.icmp, sizeof(answer) - sizeof(answer.ip), 0));
	return reject_write(skb, &answer, sizeof(answer));
}

static __always_inline int reject_ipv6_tcp(struct __sk_buff *skb, const struct ipv6hdr *ip)
{
	struct {
		struct ipv6hdr ip;
		struct reject_tcp tcp;
	} answer = { .ip = { .version = 6, .hop_limit = REJECT_HOPS, .nexthdr = IPPROTO_TCP } };
	struct reject_tcp segment;
	__u32 sum;

	if (bpf_skb_load_bytes(skb, link_header + sizeof(*ip), &segment, sizeof(segment)) ||
	    !reject_reset(&answer.tcp, &segment, bpf_ntohs(ip->payload_len)))
		return 0;
	answer.ip.payload_len = bpf_htons(sizeof(answer.tcp));
	answer.ip.saddr = ip->daddr;
	answer.ip.daddr = ip->saddr;
	sum = bpf_csum_diff(NULL, 0, (__be32 *)&answer.ip.saddr, 32, bpf_htons(IPPROTO_TCP + sizeof(answer.tcp)));
	answer.tcp.checksum = reject_fold(bpf_csum_diff(NULL, 0, (__be32 *)&answer.tcp, sizeof(answer.tcp), sum));
	return reject_write(skb, &answer, sizeof(answer));
}

/* reject_ipv6_error makes the ICMP error about a packet, with this many bytes of the packet behind its IP header. */
static __always_inline int reject_ipv6_error(struct __sk_buff *skb, enum reject_kind kind, __u32 mtu, const __u32 quote)
{
	struct {
		struct ipv6hdr ip;
		struct reject_icmp icmp;
		struct ipv6hdr about;
		__u8 quote[REJECT_INNER_FRAGMENT];
	} answer = { .icmp = reject_ipv6_icmp(kind, mtu) };
	const __u32 length = sizeof(answer) - REJECT_INNER_FRAGMENT + quote, message = length - sizeof(answer.ip);
	__u32 sum;

	if (bpf_skb_load_bytes(skb, link_header, &answer.about, sizeof(answer.about) + quote))
		return 0;
	answer.ip = (struct ipv6hdr){ .version = 6, .hop_limit = REJECT_HOPS, .nexthdr = PROTOCOL_ICMPV6 };
	answer.ip.payload_len = bpf_htons(message);
	answer.ip.saddr = answer.about.daddr;
	answer.ip.daddr = answer.about.saddr;
	sum = bpf_csum_diff(NULL, 0, (__be32 *)&answer.ip.saddr, 32, bpf_htons(PROTOCOL_ICMPV6 + message));
	answer.icmp.checksum = reject_fold(bpf_csum_diff(NULL, 0, (__be32 *)&answer.icmp, message, sum));
	return reject_write(skb, &answer, length);
}

/* A separate function, to limit the use of the stack. */
__attribute__((noinline)) int reject_ipv6_fragment(struct __sk_buff *skb, enum reject_kind kind, __u32 mtu)
{
	return reject_ipv6_error(skb, kind, mtu, REJECT_INNER_FRAGMENT);
}

__attribute__((noinline)) int reject_ipv6_packet(struct __sk_buff *skb, enum reject_kind kind, __u32 mtu)
{
	return reject_ipv6_error(skb, kind, mtu, REJECT_INNER);
}

__attribute__((noinline)) int reject_ipv6(struct __sk_buff *skb, enum reject_kind kind, __u32 mtu)
{
	struct ipv6hdr about;

	if (bpf_skb_load_bytes(skb, link_header, &about, sizeof(about)))
		return 0;
	if (ipv6_is_group(&about.saddr) || ipv6_is_unspecified(&about.saddr))
		return 0;
	if (kind == REJECT_NO_RECEIVER && about.nexthdr == IPPROTO_TCP)
		return reject_ipv6_tcp(skb, &about);
	if (kind == REJECT_TOO_BIG && about.nexthdr == NEXT_FRAGMENT)
		return reject_ipv6_fragment(skb, kind, mtu);
	return ipv6_is_extension(about.nexthdr) ? 0 : reject_ipv6_packet(skb, kind, mtu);
}

/* reject_may reports whether a packet may be rejected: it was not sent to a group of the link, and the limit of this tick is not reached. Errors that path MTU
 * discovery needs are not limited, as in the kernel (icmpv4_mask_allow in net/ipv4/icmp.c). */
static __always_inline int reject_may(struct __sk_buff *skb, __u32 endpoint, enum reject_kind kind)
{
	if (skb->pkt_type == PACKET_BROADCAST || skb->pkt_type == PACKET_MULTICAST)
		return 0;
	if (kind == REJECT_TOO_BIG)
		return 1;
	return !rate_exceeded(bpf_map_lookup_elem(&reject_rates, &endpoint), ct_now(), reject_rate);
}

/* reject rewrites a packet into its reset or ICMP error, except the Ethernet addresses, and reports whether it did: fragments and headers with options or
 * extensions are not rejected, except IPv6 fragments that are too big. endpoint is the sender's id, 0 for external senders. The caller has parsed the packet,
 * which is TCP, UDP or SCTP. */
static __always_inline int reject(struct __sk_buff *skb, __u32 endpoint, enum reject_kind kind, __u32 mtu)
{
	if (!reject_may(skb, endpoint, kind))
		return 0;
	return skb->protocol == bpf_htons(ETH_P_IPV6) ? reject_ipv6(skb, kind, mtu) : reject_ipv4(skb, kind, mtu);
}
