/* IPv6: validation, extension headers, multicast, hop limit. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in6.h>
#include <linux/ipv6.h>
#include <linux/stddef.h>
#include <bpf/bpf_endian.h>
#include "endpoint.h"
#include "packet.h"
#include "reasons.h"

#define IPV6_EXTENSIONS_MAX 6 /* longer chains serve only attacks */

#define NEXT_HOP_BY_HOP 0
#define NEXT_ROUTING 43
#define NEXT_FRAGMENT 44
#define NEXT_AUTH 51
#define NEXT_ICMPV6 58
#define NEXT_NONE 59
#define NEXT_DEST_OPTIONS 60
#define NEXT_MOBILITY 135
#define NEXT_HIP 139
#define NEXT_SHIM6 140

#define IPV6_FRAGMENT_OFFSET 0xfff8 /* the low three bits are flags */
#define IPV6_MORE_FRAGMENTS 1

/* The parsed fields of a header, stored outside of the packet because helpers invalidate pointers into it. */
struct ipv6_packet {
	struct in6_addr saddr;
	struct in6_addr daddr;
	__u8 protocol;	/* behind extension headers once ipv6_skip_extensions ran */
	__u8 hop_limit;
	__u8 fragment;	/* FRAGMENT_... once ipv6_skip_extensions ran */
	__u32 id;	/* of a fragment's datagram, as on the wire */
	__u32 l4;	/* offset of the upper header, if this part of a datagram has it */
	__u32 end;	/* of the packet; padding may follow */
};

static __always_inline verdict ipv6_parse(struct __sk_buff *skb, struct ipv6_packet *packet)
{
	__u32 offset = link_header;
	void *head = packet_head(skb, offset + sizeof(struct ipv6hdr));
	struct ipv6hdr *ip;

	if (!head)
		return DROP(FILE_IPV6, REASON_TRUNCATED);
	ip = head + offset;
	if (ip->version != 6)
		return DROP(FILE_IPV6, REASON_MALFORMED);
	if (offset + sizeof(*ip) + bpf_ntohs(ip->payload_len) > skb->len)
		return DROP(FILE_IPV6, REASON_TRUNCATED);
	packet->saddr = ip->saddr;
	packet->daddr = ip->daddr;
	packet->protocol = ip->nexthdr;
	packet->hop_limit = ip->hop_limit;
	packet->fragment = FRAGMENT_NONE;
	packet->id = 0;
	packet->l4 = offset + sizeof(*ip);
	packet->end = packet->l4 + bpf_ntohs(ip->payload_len);
	if (!ip->payload_len && skb->gso_size) /* a super-packet of more than 64 kB (BIG TCP) */
		packet->end = skb->len;
	return CONTINUE;
}

static __always_inline int ipv6_is_extension(__u8 next)
{
	switch (next) {
	case NEXT_HOP_BY_HOP:
	case NEXT_ROUTING:
	case NEXT_FRAGMENT:
	case NEXT_AUTH:
	case NEXT_DEST_OPTIONS:
	case NEXT_MOBILITY:
	case NEXT_HIP:
	case NEXT_SHIM6:
		return 1;
	}
	return 0;
}

/* is_upper reports whether the header at packet->l4 is the upper one, or the packet a later fragment, which has none. */
static __always_inline int is_upper(const struct ipv6_packet *packet)
{
	return !ipv6_is_extension(packet->protocol) || packet->fragment == FRAGMENT_LATER;
}

/* ipv6_skip_extension reads one extension header. It is a separate function, so that the verifier checks it once. */
__attribute__((noinline)) int ipv6_skip_extension(struct __sk_buff *skb, struct ipv6_packet *packet)
{
	struct {
		__u8 next;
		__u8 length;
		__be16 offset; /* this field and the next are valid only in a fragment header */
		__u32 id;
	} extension;

	if (!packet || bpf_skb_load_bytes(skb, packet->l4, &extension, sizeof(extension)))
		return DROP(FILE_IPV6, REASON_IPV6_EXTENSION);
	if (packet->protocol == NEXT_FRAGMENT) {
		if (extension.offset & bpf_htons(IPV6_FRAGMENT_OFFSET))
			packet->fragment = FRAGMENT_LATER;
		else if (extension.offset & bpf_htons(IPV6_MORE_FRAGMENTS))
			packet->fragment = FRAGMENT_FIRST;
		packet->id = extension.id;
		packet->l4 += 8;
	} else if (packet->protocol == NEXT_AUTH) {
		packet->l4 += (extension.length + 2) * 4;
	} else {
		packet->l4 += (extension.length + 1) * 8;
	}
	packet->protocol = extension.next;
	return CONTINUE;
}

/* ipv6_skip_extensions finds the upper protocol. Chains that are too long or exceed the packet are dropped, because a header that cannot be read could hide
 * anything. */
__attribute__((noinline)) int ipv6_skip_extensions(struct __sk_buff *skb, struct ipv6_packet *packet)
{
	verdict v;

	if (!packet)
		return DROP(FILE_IPV6, REASON_IPV6_EXTENSION);
	for (int i = 0; i < IPV6_EXTENSIONS_MAX && !is_upper(packet); i++) {
		if ((v = ipv6_skip_extension(skb, packet)) != CONTINUE)
			return v;
	}
	return is_upper(packet) ? CONTINUE : DROP(FILE_IPV6, REASON_IPV6_EXTENSION);
}

static __always_inline int ipv6_equal(const struct in6_addr *a, const __u8 *b)
{
	const __u32 *other = (const __u32 *)b;
	__u32 differ = 0;

	for (int i = 0; i < 4; i++)
		differ |= a->s6_addr32[i] ^ other[i];
	return !differ;
}

static __always_inline int ipv6_is_group(const struct in6_addr *addr) { return addr->s6_addr[0] == 0xff; }

static __always_inline int ipv6_is_unspecified(const struct in6_addr *addr)
{
	return !(addr->s6_addr32[0] | addr->s6_addr32[1] | addr->s6_addr32[2] | addr->s6_addr32[3]);
}

static __always_inline int ipv6_is_link_local(const struct in6_addr *addr)
{
	return (addr->s6_addr32[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000);
}

static __always_inline int endpoint_has_ipv6(const struct endpoint_facts *facts, const struct in6_addr *addr)
{
	return (facts->flags & ENDPOINT_IPV6) && ipv6_equal(addr, facts->ipv6);
}

/* ipv6_hop decrements the hop limit, which must be above 1. */
static __always_inline verdict ipv6_hop(struct __sk_buff *skb)
{
	__u32 offset = link_header;
	void *head = packet_head(skb, offset + sizeof(struct ipv6hdr));
	struct ipv6hdr *ip;

	if (!head)
		return DROP(FILE_IPV6, REASON_WRITE);
	ip = head + offset;
	ip->hop_limit--;
	return CONTINUE;
}
