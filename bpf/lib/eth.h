/* Ethernet: addresses and tags. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_endian.h>
#include "packet.h"
#include "reasons.h"

#define ETH_PROTO_MIN 0x0600 /* smaller values are lengths (802.3) */

static __always_inline int mac_equal(const __u8 *a, const __u8 *b)
{
	__u32 differ = 0;

	for (int i = 0; i < ETH_ALEN; i += 2)
		differ |= *(const __u16 *)(a + i) ^ *(const __u16 *)(b + i);
	return !differ;
}

static __always_inline void mac_copy(__u8 *to, const __u8 *from) { __builtin_memcpy(to, from, ETH_ALEN); }

/* eth_parse makes the checks that every frame must pass, when the link has frames, and stores the protocol of the packet (network order). */
static __always_inline verdict eth_parse(struct __sk_buff *skb, __be16 *proto)
{
	struct ethhdr *eth;

	*proto = skb->protocol;
	if (!link_header)
		return CONTINUE;
	if (!(eth = packet_head(skb, sizeof(*eth))))
		return DROP(FILE_ETH, REASON_TRUNCATED);
	/* The outer tag of a received frame is out of band, a second tag is in the frame. */
	if (skb->vlan_present || eth->h_proto == bpf_htons(ETH_P_8021Q) || eth->h_proto == bpf_htons(ETH_P_8021AD))
		return DROP(FILE_ETH, REASON_VLAN);
	if (bpf_ntohs(eth->h_proto) < ETH_PROTO_MIN)
		return DROP(FILE_ETH, REASON_UNSUPPORTED_L2);
	*proto = eth->h_proto;
	return CONTINUE;
}

/* eth_address writes the MAC addresses of a frame. */
static __always_inline verdict eth_address(struct __sk_buff *skb, const __u8 *to, const __u8 *from)
{
	struct ethhdr *eth = packet_head(skb, sizeof(*eth));

	if (!eth)
		return DROP(FILE_ETH, REASON_WRITE);
	mac_copy(eth->h_dest, to);
	mac_copy(eth->h_source, from);
	return CONTINUE;
}

/* eth_turn exchanges the MAC addresses, so that the frame returns to its sender. */
static __always_inline verdict eth_turn(struct __sk_buff *skb)
{
	struct ethhdr *eth;
	__u8 from[ETH_ALEN];

	if (!link_header)
		return CONTINUE;
	if (!(eth = packet_head(skb, sizeof(*eth))))
		return DROP(FILE_ETH, REASON_WRITE);
	mac_copy(from, eth->h_source);
	mac_copy(eth->h_source, eth->h_dest);
	mac_copy(eth->h_dest, from);
	return CONTINUE;
}

/* eth_from reports whether mac is the source of the frame. */
static __always_inline int eth_from(struct __sk_buff *skb, const __u8 *mac)
{
	struct ethhdr *eth = packet_head(skb, sizeof(*eth));

	return eth && mac_equal(eth->h_source, mac);
}

/* eth_to reports whether mac is the destination of the frame. */
static __always_inline int eth_to(struct __sk_buff *skb, const __u8 *mac)
{
	struct ethhdr *eth = packet_head(skb, sizeof(*eth));

	return eth && mac_equal(eth->h_dest, mac);
}
