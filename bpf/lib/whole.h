/* Whole packets without options: programs can forward them, because such packets need nothing of the node's stack except the next hop. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/types.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "endpoint.h"
#include "ipv4.h"
#include "ipv6.h"
#include "packet.h"

#define IPV4_MTU_MIN 68
#define IPV6_MTU_MIN 1280
#define IPV4_DONT_FRAGMENT 0x4000

#define WHOLE_UPPER 8 /* minimum length of an upper header in bytes, that of UDP and ICMP */

struct whole {
	struct addr_key from;
	struct addr_key to;
	__u32 length;  /* without the header of the link, and without padding */
	__u32 segment; /* likewise, of the longest packet after segmentation */
	__u8 family;
	__u8 protocol;
	__u8 tos; /* or traffic class */
	__u8 may_fragment;
	__u8 padded; /* 1: bytes follow the packet */
	__u8 pad[3];
	__be16 ports[2]; /* the first four bytes of the upper header: with TCP and UDP the source port and the destination port */
};

static __always_inline int whole_ipv4(struct __sk_buff *skb, struct whole *out)
{
	void *head = packet_head(skb, ETH_HLEN + sizeof(struct iphdr) + WHOLE_UPPER);
	struct iphdr *ip;

	if (!head)
		return 0;
	ip = head + ETH_HLEN;
	if (*(__u8 *)ip != 0x45 || ip->ttl <= 1 || (ip->frag_off & bpf_htons(IPV4_MORE_FRAGMENTS | IPV4_FRAGMENT_OFFSET)))
		return 0;
	out->from = addr_key_ipv4(ip->saddr);
	out->to = addr_key_ipv4(ip->daddr);
	out->family = 4;
	out->protocol = ip->protocol;
	out->length = bpf_ntohs(ip->tot_len);
	out->tos = ip->tos;
	out->may_fragment = !(ip->frag_off & bpf_htons(IPV4_DONT_FRAGMENT));
	__builtin_memcpy(out->ports, ip + 1, sizeof(out->ports));
	return out->length >= sizeof(*ip) + WHOLE_UPPER;
}

static __always_inline int whole_ipv6(struct __sk_buff *skb, struct whole *out)
{
	void *head = packet_head(skb, ETH_HLEN + sizeof(struct ipv6hdr) + WHOLE_UPPER);
	struct ipv6hdr *ip;

	if (!head)
		return 0;
	ip = head + ETH_HLEN;
	if (ip->version != 6 || ip->hop_limit <= 1 || ipv6_is_extension(ip->nexthdr))
		return 0;
	out->from = addr_key_ipv6(&ip->saddr);
	out->to = addr_key_ipv6(&ip->daddr);
	out->family = 6;
	out->protocol = ip->nexthdr;
	out->length = sizeof(*ip) + bpf_ntohs(ip->payload_len);
	out->tos = ip->priority << 4 | ip->flow_lbl[0] >> 4;
	__builtin_memcpy(out->ports, ip + 1, sizeof(out->ports));
	return out->length >= sizeof(*ip) + WHOLE_UPPER;
}

/* whole_has_ports reports whether the protocol is TCP or UDP. */
static __always_inline int whole_has_ports(const struct whole *packet) { return packet->protocol == IPPROTO_TCP || packet->protocol == IPPROTO_UDP; }

/* whole_at returns the offset of the upper header of a packet. */
static __always_inline __u32 whole_at(const struct whole *packet)
{
	return ETH_HLEN + (packet->family == 6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));
}

/* whole_cut finds the length of the segments of a packet. It reports whether the length is known. */
static __always_inline int whole_cut(struct __sk_buff *skb, struct whole *out)
{
	__u32 at = whole_at(out);
	__u8 offset;

	out->segment = out->length;
	if (!skb->gso_size)
		return 1;
	if (out->protocol == IPPROTO_UDP)
		out->segment = at - ETH_HLEN + sizeof(struct udphdr) + skb->gso_size;
	else if (out->protocol == IPPROTO_TCP && !bpf_skb_load_bytes(skb, at + 12, &offset, sizeof(offset)))
		out->segment = at - ETH_HLEN + (offset >> 4) * 4 + skb->gso_size;
	else
		return 0;
	return 1;
}

/* whole_read reads a packet with an Ethernet header. It reports whether the packet is whole, without options, and has a TTL
 * above 1 and at least WHOLE_UPPER bytes behind its IP header. */
__attribute__((noinline)) int whole_read(struct __sk_buff *skb, struct whole *out)
{
	if (!out)
		return 0;
	if (skb->protocol == bpf_htons(ETH_P_IP) ? !whole_ipv4(skb, out) : skb->protocol != bpf_htons(ETH_P_IPV6) || !whole_ipv6(skb, out))
		return 0;
	out->padded = ETH_HLEN + out->length != skb->len;
	if (ETH_HLEN + out->length > skb->len || (out->padded && skb->gso_size)) /* a super-packet of more than 64 kB has no length */
		return 0;
	return whole_cut(skb, out);
}

/* whole_is_rejected reports whether a packet whose segments are too long gets an ICMP error. Otherwise the stack or a device fragments it. */
static __always_inline int whole_is_rejected(const struct whole *packet, __u32 mtu)
{
	return !packet->may_fragment && mtu >= (packet->family == 6 ? IPV6_MTU_MIN : IPV4_MTU_MIN);
}
