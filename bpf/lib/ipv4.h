/* IPv4: validation, multicast, time to live. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <bpf/bpf_endian.h>
#include "packet.h"
#include "reasons.h"

#define IPV4_MORE_FRAGMENTS 0x2000
#define IPV4_FRAGMENT_OFFSET 0x1fff

/* The parsed fields of a header, stored outside of the packet because helpers invalidate pointers into it. */
struct ipv4_packet {
	__be32 saddr;
	__be32 daddr;
	__u8 protocol;
	__u8 ttl;
	__u8 fragment; /* FRAGMENT_... */
	__u32 id;      /* of a fragment's datagram, as on the wire */
	__u32 l4;      /* offset of the upper header, if this part of a datagram has it */
	__u32 end;     /* of the packet; padding may follow */
};

static __always_inline verdict ipv4_parse(struct __sk_buff *skb, struct ipv4_packet *packet)
{
	__u32 offset = link_header, header, total;
	void *head = packet_head(skb, offset + sizeof(struct iphdr));
	struct iphdr *ip;

	if (!head)
		return DROP(FILE_IPV4, REASON_TRUNCATED);
	ip = head + offset;
	header = ip->ihl * 4;
	total = bpf_ntohs(ip->tot_len);
	if (ip->version != 4 || header < sizeof(*ip))
		return DROP(FILE_IPV4, REASON_MALFORMED);
	/* A super-packet of more than 64 kB (BIG TCP) has no total length. */
	if (total < header && !(total == 0 && skb->gso_size))
		return DROP(FILE_IPV4, REASON_MALFORMED);
	if (offset + header > skb->len || offset + total > skb->len)
		return DROP(FILE_IPV4, REASON_TRUNCATED);
	packet->saddr = ip->saddr;
	packet->daddr = ip->daddr;
	packet->protocol = ip->protocol;
	packet->ttl = ip->ttl;
	packet->l4 = offset + header;
	packet->end = total ? offset + total : skb->len;
	packet->id = ip->id;
	packet->fragment = FRAGMENT_NONE;
	if (ip->frag_off & bpf_htons(IPV4_FRAGMENT_OFFSET))
		packet->fragment = FRAGMENT_LATER;
	else if (ip->frag_off & bpf_htons(IPV4_MORE_FRAGMENTS))
		packet->fragment = FRAGMENT_FIRST;
	return CONTINUE;
}

/* ipv4_is_group reports whether addr is a multicast group or the limited broadcast. */
static __always_inline int ipv4_is_group(__be32 addr)
{
	return (addr & bpf_htonl(0xf0000000)) == bpf_htonl(0xe0000000) || addr == bpf_htonl(0xffffffff);
}

/* ipv4_is_node_local reports whether addr never leaves the node that uses it: 0/8 ("this network") and 127/8 (loopback), RFC 6890. With route_localnet, the
 * stack would accept such packets from a pod's link. */
static __always_inline int ipv4_is_node_local(__be32 addr)
{
	__be32 network = addr & bpf_htonl(0xff000000);

	return network == 0 || network == bpf_htonl(0x7f000000);
}

/* ipv4_hop_at decrements the TTL, which must be above 1, and updates the checksum. */
static __always_inline void ipv4_hop_at(struct iphdr *ip)
{
	/* A decrement of the high byte of a word increments the complement: RFC 1624 with a carry of at most one. */
	__u32 sum = ip->check + bpf_htons(0x0100);

	ip->check = sum + (sum >= 0xffff);
	ip->ttl--;
}

/* ipv4_hop does the same with the header of a packet. */
static __always_inline verdict ipv4_hop(struct __sk_buff *skb)
{
	__u32 offset = link_header;
	void *head = packet_head(skb, offset + sizeof(struct iphdr));

	if (!head)
		return DROP(FILE_IPV4, REASON_WRITE);
	ipv4_hop_at(head + offset);
	return CONTINUE;
}
