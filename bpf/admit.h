/* What other nodes send to pods and addresses of this node without the tunnel (--routing-mode=hybrid). */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "endpoint.h"
#include "eth.h"
#include "ipcache.h"
#include "ipv4.h"
#include "ipv6.h"
#include "mark.h"
#include "masquerade_maps.h"
#include "nat.h"
#include "reasons.h"

/* 1 when nodes may send to pods without the tunnel, whatever this node does. */
volatile const __u32 direct_accepted = 0;

/* admit_ends reads the addresses of a packet, and reports whether it has any. */
static __always_inline int admit_ends(struct __sk_buff *skb, struct addr_key *from, struct addr_key *to)
{
	struct ipv4_packet ipv4;
	struct ipv6_packet ipv6;
	__be16 proto;

	if (eth_parse(skb, &proto) != CONTINUE)
		return 0;
	if (proto == bpf_htons(ETH_P_IP) && ipv4_parse(skb, &ipv4) == CONTINUE) {
		*from = addr_key_ipv4(ipv4.saddr);
		*to = addr_key_ipv4(ipv4.daddr);
		return 1;
	}
	if (proto == bpf_htons(ETH_P_IPV6) && ipv6_parse(skb, &ipv6) == CONTINUE) {
		*from = addr_key_ipv6(&ipv6.saddr);
		*to = addr_key_ipv6(&ipv6.daddr);
		return 1;
	}
	return 0;
}

/* admit marks a packet from a device that leads out, from an address of another node or of one of its pods to one of this node or of a pod here. The
 * route to its source may lead into waggle_host, as those to pods of this node do, and the nftables rules drop packets of other devices with such a
 * source unless they have the mark. */
__attribute__((noinline)) int admit(struct __sk_buff *skb)
{
	struct addr_key from = {}, to = {};
	__u32 ifindex = skb->ifindex;

	if (!direct_accepted || skb->pkt_type == PACKET_OTHERHOST || !bpf_map_lookup_elem(&netdevs, &ifindex) || !admit_ends(skb, &from, &to))
		return 0;
	if (!bpf_map_lookup_elem(&bpf_endpoints, &to) || bpf_map_lookup_elem(&bpf_endpoints, &from) || !ipcache_node(&from))
		return 0;
	skb->mark = mark_of(ipcache_identity(&from));
	return 0;
}

/* admit_target reports whether the target of the entry of the work is on another node that may be reached without the tunnel. */
__attribute__((noinline)) int admit_target(__u32 family)
{
	struct nat_work *work = nat_work();
	struct addr_key to = {};

	if (!direct_accepted || !work)
		return 0;
	to.family = family;
	__builtin_memcpy(to.addr, work->entry.daddr, sizeof(to.addr));
	return !!ipcache_node(&to);
}
