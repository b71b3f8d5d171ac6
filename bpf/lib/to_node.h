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
#include "path_cache.h"
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
__attribute__((noinline)) int to_node_ends(struct path_work *work, struct path *path)
{
	struct addr_key to, outer;
	struct node *node;
	__u32 id;

	if (!work || !path)
		return 0;
	to = work->packet.to; /* helpers of Linux 6.1 take no key from the memory of a caller */
	if (bpf_map_lookup_elem(&bpf_endpoints, &to)) /* on this node, although its range may be another node's by now */
		return 0;
	id = to_node_id(&to);
	if (!id || !(node = node_underlay(id, &outer)) || outer.family != 4 || node->mode == NODE_DIRECT)
		return 0;
	path_outer(path)->ip.daddr = *(const __be32 *)outer.addr;
	path_outer(path)->ip.saddr = *(const __be32 *)node->underlay_source;
	path->completer = node->ifindex;
	work->mtu = node->mtu;
	return !!path_outer(path)->ip.saddr;
}

/* to_node_port returns the source port, by the kernel's formula. */
static __always_inline __be16 to_node_port(struct __sk_buff *skb)
{
	__u32 hash = bpf_get_hash_recalc(skb);

	hash ^= hash << 16;
	return bpf_htons(((__u64)hash * (encap_port_last - encap_port_first) >> 32) + encap_port_first);
}

/* to_node_headers completes the outer headers, which have the addresses and the source port. */
__attribute__((noinline)) int to_node_headers(const struct path_work *work, struct path *path, __u32 identity)
{
	struct encap *encap = encap_now();
	struct encap_headers *outer;
	__u32 sum = 0;

	if (!work || !path || !encap)
		return 0;
	outer = path_outer(path);
	outer->ip.version = 4;
	outer->ip.ihl = sizeof(outer->ip) / 4;
	outer->ip.tos = to_node_tos(work->packet.tos);
	outer->ip.ttl = OVERLAY_TTL;
	outer->ip.protocol = IPPROTO_UDP;
	for (int i = 0; i < (int)sizeof(outer->ip); i += 4)
		sum += *(const __u16 *)((void *)outer + i) + *(const __u16 *)((void *)outer + i + 2);
	path->sum = sum;
	outer->udp.dest = bpf_htons(tunnel_port);
	outer->flags = bpf_htonl(VXLAN_FLAGS);
	outer->vni = bpf_htonl(overlay_vni(identity) << VXLAN_VNI_SHIFT);
	mac_copy(outer->eth.h_dest, encap->mac);
	mac_copy(outer->eth.h_source, encap->mac);
	outer->eth.h_proto = work->packet.family == 6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
	path->tunnelled = 1;
	path->untranslated = 1; /* the tunnel is no connection of the node */
	return 1;
}

/* to_node_look_up finds the outer headers and the route of the outer packet: CONTINUE, STEP_TOO_BIG with work->mtu, or PASS when there is none that programs can
 * use. The look-up of the route has the loopback device as input, as for a packet of the node itself. */
__attribute__((noinline)) int to_node_look_up(struct __sk_buff *skb, struct path_work *work, struct path *path, __u32 identity)
{
	struct bpf_fib_lookup fib = { .family = FAMILY_IPV4, .l4_protocol = IPPROTO_UDP, .ifindex = LOOPBACK_IFINDEX };
	struct encap *encap = encap_now();
	__u32 ifindex;
	long found;

	/* Before netdev_ingress decapsulates, the node's connection tracking would see only the replies, and treat them as invalid. */
	if (protocol_written() < PROTOCOL_DECAPSULATES)
		return PASS;
	if (!work || !path || !encap || !encap->mtu || !to_node_fits(&work->packet) || !to_node_ends(work, path))
		return PASS;
	if (!work->mtu || work->mtu > encap->mtu)
		work->mtu = encap->mtu;
	if (work->packet.segment > work->mtu)
		return STEP_TOO_BIG;
	fib.sport = to_node_port(skb);
	fib.dport = bpf_htons(tunnel_port);
	fib.ipv4_src = path_outer(path)->ip.saddr;
	fib.ipv4_dst = path_outer(path)->ip.daddr;
	fib.tot_len = work->packet.segment + ENCAP_LENGTH;
	path_outer(path)->udp.source = fib.sport;
	found = bpf_fib_lookup(skb, &fib, sizeof(fib), 0);
	if (found == BPF_FIB_LKUP_RET_FRAG_NEEDED) {
		work->mtu = fib.mtu_result - ENCAP_LENGTH;
		return fib.mtu_result > ENCAP_LENGTH ? STEP_TOO_BIG : PASS;
	}
	/* If the neighbour's link address is unknown, the kernel resolves it when the packet is sent. */
	if (found != BPF_FIB_LKUP_RET_SUCCESS && found != BPF_FIB_LKUP_RET_NO_NEIGH)
		return PASS;
	ifindex = fib.ifindex;
	if (!bpf_map_lookup_elem(&netdevs, &ifindex))
		return PASS;
	path->output = fib.ifindex;
	path->hop.nh_family = fib.family;
	__builtin_memcpy(path->hop.ipv6_nh, fib.ipv6_dst, sizeof(path->hop.ipv6_nh));
	return to_node_headers(work, path, identity) ? CONTINUE : PASS;
}

/* to_node_wrap encapsulates a packet. PASS when the kernel cannot enlarge the packet, which is then unchanged. */
__attribute__((noinline)) int to_node_wrap(struct __sk_buff *skb, const struct whole *packet, struct path *path)
{
	struct encap_headers *outer;
	struct ethhdr *eth;
	__be16 length;
	void *head;
	__u16 id;

	if (!packet || !path)
		return PASS;
	if (bpf_skb_adjust_room(skb, ENCAP_LENGTH, BPF_ADJ_ROOM_MAC,
				BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 | BPF_F_ADJ_ROOM_ENCAP_L4_UDP |
					BPF_F_ADJ_ROOM_ENCAP_L2(ETH_HLEN) | BPF_F_ADJ_ROOM_ENCAP_L2_ETH))
		return PASS;
	if (!(head = packet_head(skb, ENCAP_INNER + sizeof(struct iphdr))))
		return DROP(FILE_TO_NODE, REASON_WRITE);
	eth = head;
	eth->h_proto = bpf_htons(ETH_P_IP);
	outer = head + ETH_HLEN;
	for (int i = 0; i < ENCAP_LENGTH / 8; i++)
		((word *)outer)[i] = path->outer[i];
	outer->eth.h_proto = path_outer(path)->eth.h_proto; /* the last two bytes */
	length = bpf_htons(packet->length + ENCAP_LENGTH);
	id = bpf_get_prandom_u32();
	outer->ip.tot_len = length;
	outer->ip.id = id;
	outer->ip.check = reject_fold(path->sum + length + id);
	outer->udp.len = bpf_htons(packet->length + ENCAP_LENGTH - sizeof(outer->ip));
	head += ENCAP_INNER;
	if (packet->family == 6)
		((struct ipv6hdr *)head)->hop_limit--;
	else
		ipv4_hop_at(head);
	skb->mark = 0; /* the outer packet is one of the node and follows its ordinary routes */
	return CONTINUE;
}

/* to_node_complete sends a packet to the device that completes its checksum. The program on its peer device encapsulates it by the tunnel device. */
static __always_inline verdict to_node_complete(struct __sk_buff *skb, __u32 family, __u32 completer)
{
	verdict v = family == 6 ? ipv6_hop(skb) : ipv4_hop(skb);

	if (v != CONTINUE)
		return v;
	skb->mark = 0;
	skb->priority = 0; /* that of a pod's socket is no business of the node's queues */
	return bpf_redirect(completer, 0) == REDIRECTED ? REDIRECTED : DROP(FILE_TO_NODE, REASON_WRITE);
}

/* to_node sends a packet by the results of to_node_look_up. It returns REDIRECTED, PASS when the stack must send the packet, or a drop. */
__attribute__((noinline)) int to_node(struct __sk_buff *skb, const struct whole *packet, struct path *path)
{
	if (!packet || !path || !to_node_fits(packet))
		return PASS;
	if (path->completer)
		return to_node_complete(skb, packet->family, path->completer);
	return to_node_wrap(skb, packet, path);
}
