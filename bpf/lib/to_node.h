/* Encapsulation of packets of a pod to a pod of another node. Packets that the device must process, or that a program cannot encapsulate, are passed to the
 * stack unchanged; a route leads them to the tunnel device. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "encap.h"
#include "endpoint.h"
#include "eth.h"
#include "evaluate.h"
#include "ipcache.h"
#include "ipv4.h"
#include "ipv6.h"
#include "masquerade_maps.h"
#include "nodes.h"
#include "overlay.h"
#include "protocol.h"
#include "reasons.h"
#include "reject.h"
#include "route.h"
#include "whole.h"

#define LOOPBACK_IFINDEX 1 /* in every network namespace */

/* The source ports that the kernel uses for tunnels (udp_flow_src_port in include/net/udp.h); the loader sets them from net.ipv4.ip_local_port_range. */
volatile const __u32 encap_port_first = 32768;
volatile const __u32 encap_port_last = 60999;

#define ECN_MASK 3
#define ECN_ECT_0 2
#define ECN_CE 3

/* A packet for another node, and its outer addresses and route. */
struct to_node {
	struct whole packet;
	__be32 source; /* of the outer header */
	__be32 peer;   /* outer destination: the node */
	__u32 mtu;     /* of inner packets: the maximum that the path to the node carries, 0 for no limit; when the packet is too long, the length that fits */
	__u32 ifindex; /* device by which it leaves */
	__u32 completer; /* device that completes its checksum; 0 without one */
	struct bpf_redir_neigh hop;
	__be16 sport;
	__u8 pad[2];
};

/* to_node_tos returns the outer TOS that the tunnel device would set: no DSCP, and ECN by RFC 3168, 9.1.1. */
static __always_inline __u8 to_node_tos(__u8 inner)
{
	inner &= ECN_MASK;
	return inner == ECN_CE ? ECN_ECT_0 : inner;
}

/* to_node_fits reports whether a program may encapsulate a packet: it fits into an outer packet, and the kernel supports this for its family. */
static __always_inline int to_node_fits(const struct whole *packet)
{
	return !packet->padded && packet->length + ENCAP_LENGTH <= 65535 &&
	       (encap_modes & (packet->family == 6 ? ENCAP_SENDS_IPV6 : ENCAP_SENDS_IPV4));
}

/* to_node_id returns the id of the node that has an address, 0 when no pod of another node has it: nodes are reached without the tunnel. */
static __always_inline __u32 to_node_id(const struct addr_key *to)
{
	struct ipcache_entry *entry = bpf_map_lookup_elem(&ipcache, to);

	if (entry && identity_is_remote_node(entry->identity))
		return 0;
	return entry && entry->node ? entry->node : ipcache_node(to);
}

/* to_node_ends finds the outer addresses for the id of a node. It reports whether IPv4 reaches the node. Separate, because keys need stack space. */
__attribute__((noinline)) int to_node_ends(struct to_node *out)
{
	struct addr_key to, outer;
	struct node *node;
	__u32 id;

	if (!out)
		return 0;
	to = out->packet.to; /* helpers of Linux 6.1 take no key from the memory of a caller */
	if (bpf_map_lookup_elem(&bpf_endpoints, &to)) /* on this node, although its range may be another node's by now */
		return 0;
	id = to_node_id(&to);
	if (!id || !(node = node_underlay(id, &outer)) || outer.family != 4 || node->mode == NODE_DIRECT)
		return 0;
	out->peer = *(const __be32 *)outer.addr;
	out->source = *(const __be32 *)node->underlay_source;
	out->mtu = node->mtu;
	out->completer = node->ifindex;
	return !!out->source;
}

/* to_node_port returns the source port, by the kernel's formula. */
static __always_inline __be16 to_node_port(struct __sk_buff *skb)
{
	__u32 hash = bpf_get_hash_recalc(skb);

	hash ^= hash << 16;
	return bpf_htons(((__u64)hash * (encap_port_last - encap_port_first) >> 32) + encap_port_first);
}

/* to_node_route finds the route of the outer packet: CONTINUE, STEP_TOO_BIG with out->mtu, or PASS when there is none that programs can use. The look-up has
 * the loopback device as input, as for a packet of the node itself. */
__attribute__((noinline)) int to_node_route(struct __sk_buff *skb, struct to_node *out, __u32 mtu)
{
	struct bpf_fib_lookup fib = { .family = FAMILY_IPV4, .l4_protocol = IPPROTO_UDP, .ifindex = LOOPBACK_IFINDEX };
	long found;

	if (!out || !mtu)
		return PASS;
	if (!out->mtu || out->mtu > mtu)
		out->mtu = mtu;
	if (out->packet.segment > out->mtu)
		return STEP_TOO_BIG;
	out->sport = to_node_port(skb);
	fib.sport = out->sport;
	fib.dport = bpf_htons(tunnel_port);
	fib.ipv4_src = out->source;
	fib.ipv4_dst = out->peer;
	fib.tot_len = out->packet.segment + ENCAP_LENGTH;
	found = bpf_fib_lookup(skb, &fib, sizeof(fib), 0);
	if (found == BPF_FIB_LKUP_RET_FRAG_NEEDED) {
		out->mtu = fib.mtu_result - ENCAP_LENGTH;
		return fib.mtu_result > ENCAP_LENGTH ? STEP_TOO_BIG : PASS;
	}
	/* If the neighbour's link address is unknown, the kernel resolves it when the packet is sent. */
	if (found != BPF_FIB_LKUP_RET_SUCCESS && found != BPF_FIB_LKUP_RET_NO_NEIGH)
		return PASS;
	out->ifindex = fib.ifindex;
	out->hop.nh_family = fib.family;
	__builtin_memcpy(out->hop.ipv6_nh, fib.ipv6_dst, sizeof(out->hop.ipv6_nh));
	return CONTINUE;
}

/* to_node_outer returns the outer IP header. */
static __always_inline struct iphdr to_node_outer(const struct to_node *out)
{
	union {
		struct iphdr ip;
		__u16 words[sizeof(struct iphdr) / 2];
	} outer = { .ip = { .version = 4, .ihl = 5, .tos = to_node_tos(out->packet.tos), .ttl = OVERLAY_TTL, .protocol = IPPROTO_UDP } };
	__u32 sum = 0;

	outer.ip.tot_len = bpf_htons(out->packet.length + ENCAP_LENGTH);
	outer.ip.id = bpf_get_prandom_u32();
	outer.ip.saddr = out->source;
	outer.ip.daddr = out->peer;
	for (int i = 0; i < (int)(sizeof(outer.words) / sizeof(outer.words[0])); i++)
		sum += outer.words[i];
	outer.ip.check = reject_fold(sum);
	return outer.ip;
}

/* to_node_wrap encapsulates a packet. PASS when the kernel cannot enlarge the packet, which is then unchanged. */
__attribute__((noinline)) int to_node_wrap(struct __sk_buff *skb, const struct to_node *out, __u32 vni, const struct encap *encap)
{
	struct encap_headers outer = {};
	struct ethhdr *eth;
	void *head;

	if (!out || !encap)
		return PASS;
	if (bpf_skb_adjust_room(skb, ENCAP_LENGTH, BPF_ADJ_ROOM_MAC,
				BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 | BPF_F_ADJ_ROOM_ENCAP_L4_UDP |
					BPF_F_ADJ_ROOM_ENCAP_L2(ETH_HLEN) | BPF_F_ADJ_ROOM_ENCAP_L2_ETH))
		return PASS;
	outer.ip = to_node_outer(out);
	outer.udp.source = out->sport;
	outer.udp.dest = bpf_htons(tunnel_port);
	outer.udp.len = bpf_htons(out->packet.length + ENCAP_LENGTH - sizeof(outer.ip));
	outer.flags = bpf_htonl(VXLAN_FLAGS);
	outer.vni = bpf_htonl(vni << VXLAN_VNI_SHIFT);
	mac_copy(outer.eth.h_dest, encap->mac);
	mac_copy(outer.eth.h_source, encap->mac);
	outer.eth.h_proto = out->packet.family == 6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
	if (!(head = packet_head(skb, ENCAP_INNER + sizeof(struct iphdr))))
		return DROP(FILE_TO_NODE, REASON_WRITE);
	eth = head;
	eth->h_proto = bpf_htons(ETH_P_IP);
	__builtin_memcpy(head + ETH_HLEN, &outer, sizeof(outer));
	head += ENCAP_INNER;
	if (out->packet.family == 6)
		((struct ipv6hdr *)head)->hop_limit--;
	else
		ipv4_hop_at(head);
	skb->mark = 0;	   /* the outer packet is one of the node and follows its ordinary routes */
	skb->priority = 0; /* that of a pod's socket is no business of the node's queues */
	return CONTINUE;
}

/* to_node_complete sends a packet to the device that completes its checksum. The program on its peer device encapsulates it by the tunnel device. */
__attribute__((noinline)) int to_node_complete(struct __sk_buff *skb, const struct to_node *out)
{
	verdict v;

	if (!out)
		return DROP(FILE_TO_NODE, REASON_INTERNAL);
	if ((v = out->packet.family == 6 ? ipv6_hop(skb) : ipv4_hop(skb)) != CONTINUE)
		return v;
	skb->mark = 0;
	skb->priority = 0; /* that of a pod's socket is no business of the node's queues */
	return bpf_redirect(out->completer, 0) == REDIRECTED ? REDIRECTED : DROP(FILE_TO_NODE, REASON_WRITE);
}

/* to_node sends a packet of a pod to the node of its destination. It returns REDIRECTED, PASS when the stack must send the packet, or a drop. If the packet is
 * too long, that is a drop and *mtu is the length that fits. It is a separate function, so that its caller uses little stack. */
__attribute__((noinline)) int to_node(struct __sk_buff *skb, const struct endpoint_facts *self, __u32 *mtu)
{
	struct encap *encap = encap_now();
	struct to_node out = {};
	verdict v;

	/* Before netdev_ingress decapsulates, the node's connection tracking would see only the replies, and treat them as invalid. */
	if (!self || !mtu || !encap || protocol_written() < PROTOCOL_DECAPSULATES || !whole_read(skb, &out.packet) || !to_node_fits(&out.packet) ||
	    !has_address(self, &out.packet.from) || !to_node_ends(&out))
		return PASS;
	v = to_node_route(skb, &out, encap->mtu);
	if (v == STEP_TOO_BIG) {
		if (!whole_is_rejected(&out.packet, out.mtu))
			return PASS;
		*mtu = out.mtu;
		return DROP_REJECT(FILE_TO_NODE, REASON_TOO_BIG);
	}
	if (v != CONTINUE || !bpf_map_lookup_elem(&netdevs, &out.ifindex))
		return PASS;
	if (out.completer)
		return to_node_complete(skb, &out);
	if ((v = to_node_wrap(skb, &out, overlay_vni(self->identity), encap)) != CONTINUE)
		return v;
	return bpf_redirect_neigh(out.ifindex, &out.hop, sizeof(out.hop), 0) == REDIRECTED ? REDIRECTED : DROP(FILE_TO_NODE, REASON_WRITE);
}
