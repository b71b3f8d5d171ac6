/* Encapsulation of what a pod sends to a pod of another node. Whatever a device has to see, and what cannot be encapsulated here, goes to the stack as
 * it is; a route leads it to the tunnel device. */
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
#include "ipcache.h"
#include "ipv4.h"
#include "ipv6.h"
#include "judge.h"
#include "leave.h"
#include "masquerade_maps.h"
#include "nodes.h"
#include "overlay.h"
#include "protocol.h"
#include "reasons.h"
#include "reject.h"

#define LOOPBACK_IFINDEX 1 /* in every network namespace */

/* The source ports that the kernel uses for tunnels (udp_flow_src_port in include/net/udp.h), unless net.ipv4.ip_local_port_range is another one. */
volatile const __u32 encap_port_first = 32768;
volatile const __u32 encap_port_last = 60999;

#define IPV4_MTU_MIN 68
#define IPV6_MTU_MIN 1280
#define IPV4_DONT_FRAGMENT 0x4000

#define ECN_MASK 3
#define ECN_ECT_0 2
#define ECN_CE 3

/* A packet for another node, and where it goes. */
struct to_node {
	struct addr_key from;
	struct addr_key to;
	__be32 source; /* of the outer header */
	__be32 peer;   /* its target: the node */
	__u32 length;  /* of the packet without link header */
	__u32 segment; /* likewise, of the longest part that it will be cut into */
	__u32 mtu;     /* of inner packets: what the path to the node carries, 0 when it carries all; when the packet is too long, what fits */
	__u32 ifindex; /* where it leaves */
	struct bpf_redir_neigh hop;
	__be16 sport;
	__u8 family;
	__u8 protocol;
	__u8 tos; /* of the outer header */
	__u8 may_fragment;
	__u8 pad[2];
};

/* to_node_tos is the outer TOS as the tunnel device makes it: no DSCP, and ECN by RFC 3168, 9.1.1. */
static __always_inline __u8 to_node_tos(__u8 inner)
{
	inner &= ECN_MASK;
	return inner == ECN_CE ? ECN_ECT_0 : inner;
}

static __always_inline int to_node_ipv4(struct __sk_buff *skb, struct to_node *out)
{
	void *head = packet_head(skb, ETH_HLEN + sizeof(struct iphdr));
	struct iphdr *ip;

	if (!head || !(encap_modes & ENCAP_SENDS_IPV4))
		return 0;
	ip = head + ETH_HLEN;
	if (*(__u8 *)ip != 0x45 || ip->ttl <= 1 || (ip->frag_off & bpf_htons(IPV4_MORE_FRAGMENTS | IPV4_FRAGMENT_OFFSET)))
		return 0;
	out->from = addr_key_ipv4(ip->saddr);
	out->to = addr_key_ipv4(ip->daddr);
	out->family = 4;
	out->protocol = ip->protocol;
	out->length = bpf_ntohs(ip->tot_len);
	out->tos = to_node_tos(ip->tos);
	out->may_fragment = !(ip->frag_off & bpf_htons(IPV4_DONT_FRAGMENT));
	return 1;
}

static __always_inline int to_node_ipv6(struct __sk_buff *skb, struct to_node *out)
{
	void *head = packet_head(skb, ETH_HLEN + sizeof(struct ipv6hdr));
	struct ipv6hdr *ip;

	if (!head || !(encap_modes & ENCAP_SENDS_IPV6))
		return 0;
	ip = head + ETH_HLEN;
	if (ip->version != 6 || ip->hop_limit <= 1 || ipv6_is_extension(ip->nexthdr))
		return 0;
	out->from = addr_key_ipv6(&ip->saddr);
	out->to = addr_key_ipv6(&ip->daddr);
	out->family = 6;
	out->protocol = ip->nexthdr;
	out->length = sizeof(*ip) + bpf_ntohs(ip->payload_len);
	out->tos = to_node_tos(ip->flow_lbl[0] >> 4);
	return 1;
}

/* to_node_cut finds how long the segments of a packet are. It reports whether that is known. */
static __always_inline int to_node_cut(struct __sk_buff *skb, struct to_node *out)
{
	__u32 header = out->family == 6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
	__u8 offset;

	out->segment = out->length;
	if (!skb->gso_size)
		return 1;
	if (out->protocol == IPPROTO_UDP)
		out->segment = header + sizeof(struct udphdr) + skb->gso_size;
	else if (out->protocol == IPPROTO_TCP && !bpf_skb_load_bytes(skb, ETH_HLEN + header + 12, &offset, sizeof(offset)))
		out->segment = header + (offset >> 4) * 4 + skb->gso_size;
	else
		return 0;
	return 1;
}

/* to_node_id returns the id of the node that has an address, 0 when the packet belongs to no pod of another node: nodes are met without the tunnel. */
static __always_inline __u32 to_node_id(const struct addr_key *to)
{
	struct ipcache_entry *entry = bpf_map_lookup_elem(&ipcache, to);

	if (entry && identity_is_remote_node(entry->identity))
		return 0;
	return entry && entry->node ? entry->node : ipcache_node(to);
}

/* to_node_ends finds the outer addresses for an id of a node, and reports whether it is reached over IPv4. Its own function has room for keys. */
__attribute__((noinline)) int to_node_ends(struct to_node *out)
{
	struct addr_key to, outer;
	struct node *node;
	__u32 id;

	if (!out)
		return 0;
	to = out->to; /* helpers of Linux 6.1 take no key from the memory of a caller */
	if (bpf_map_lookup_elem(&bpf_endpoints, &to)) /* on this node, although its range may be another node's by now */
		return 0;
	id = to_node_id(&to);
	if (!id || !(node = node_underlay(id, &outer)) || outer.family != 4 || node->mode == NODE_DIRECT)
		return 0;
	out->peer = *(const __be32 *)outer.addr;
	out->source = *(const __be32 *)node->underlay_source;
	out->mtu = node->mtu;
	return !!out->source;
}

/* to_node_read reads a packet, and reports whether it may be encapsulated here: a whole one without options and without bytes behind it, which fits into
 * an outer packet. */
__attribute__((noinline)) int to_node_read(struct __sk_buff *skb, struct to_node *out)
{
	if (!out)
		return 0;
	if (skb->protocol == bpf_htons(ETH_P_IP) ? !to_node_ipv4(skb, out) : !to_node_ipv6(skb, out))
		return 0;
	return ETH_HLEN + out->length == skb->len && out->length + ENCAP_LENGTH <= 65535 && to_node_cut(skb, out);
}

/* to_node_port is the source port, by the kernel's formula. */
static __always_inline __be16 to_node_port(struct __sk_buff *skb)
{
	__u32 hash = bpf_get_hash_recalc(skb);

	hash ^= hash << 16;
	return bpf_htons(((__u64)hash * (encap_port_last - encap_port_first) >> 32) + encap_port_first);
}

/* to_node_route finds the way of the outer packet: CONTINUE, STEP_TOO_BIG with out->mtu, or PASS when there is none for programs. It is a packet of
 * the node itself, for which the loopback device stands. */
__attribute__((noinline)) int to_node_route(struct __sk_buff *skb, struct to_node *out, __u32 mtu)
{
	struct bpf_fib_lookup fib = { .family = FAMILY_IPV4, .l4_protocol = IPPROTO_UDP, .ifindex = LOOPBACK_IFINDEX };
	long found;

	if (!out || !mtu)
		return PASS;
	if (!out->mtu || out->mtu > mtu)
		out->mtu = mtu;
	if (out->segment > out->mtu)
		return STEP_TOO_BIG;
	out->sport = to_node_port(skb);
	fib.sport = out->sport;
	fib.dport = bpf_htons(tunnel_port);
	fib.ipv4_src = out->source;
	fib.ipv4_dst = out->peer;
	fib.tot_len = out->segment + ENCAP_LENGTH;
	found = bpf_fib_lookup(skb, &fib, sizeof(fib), 0);
	if (found == BPF_FIB_LKUP_RET_FRAG_NEEDED) {
		out->mtu = fib.mtu_result - ENCAP_LENGTH;
		return fib.mtu_result > ENCAP_LENGTH ? STEP_TOO_BIG : PASS;
	}
	/* Whose link address is not known yet is asked for when the packet is sent. */
	if (found != BPF_FIB_LKUP_RET_SUCCESS && found != BPF_FIB_LKUP_RET_NO_NEIGH)
		return PASS;
	out->ifindex = fib.ifindex;
	out->hop.nh_family = fib.family;
	__builtin_memcpy(out->hop.ipv6_nh, fib.ipv6_dst, sizeof(out->hop.ipv6_nh));
	return CONTINUE;
}

/* to_node_outer makes the outer IP header. */
static __always_inline struct iphdr to_node_outer(const struct to_node *out)
{
	union {
		struct iphdr ip;
		__u16 words[sizeof(struct iphdr) / 2];
	} outer = { .ip = { .version = 4, .ihl = 5, .tos = out->tos, .ttl = OVERLAY_TTL, .protocol = IPPROTO_UDP } };
	__u32 sum = 0;

	outer.ip.tot_len = bpf_htons(out->length + ENCAP_LENGTH);
	outer.ip.id = bpf_get_prandom_u32();
	outer.ip.saddr = out->source;
	outer.ip.daddr = out->peer;
	for (int i = 0; i < (int)(sizeof(outer.words) / sizeof(outer.words[0])); i++)
		sum += outer.words[i];
	outer.ip.check = reject_fold(sum);
	return outer.ip;
}

/* to_node_wrap encapsulates a packet. PASS when the kernel does not make room; the packet is then as it was. */
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
	outer.udp.len = bpf_htons(out->length + ENCAP_LENGTH - sizeof(outer.ip));
	outer.flags = bpf_htonl(VXLAN_FLAGS);
	outer.vni = bpf_htonl(vni << VXLAN_VNI_SHIFT);
	mac_copy(outer.eth.h_dest, encap->mac);
	mac_copy(outer.eth.h_source, encap->mac);
	outer.eth.h_proto = out->family == 6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
	if (!(head = packet_head(skb, ENCAP_INNER + sizeof(struct iphdr))))
		return DROP(FILE_TO_NODE, REASON_WRITE);
	eth = head;
	eth->h_proto = bpf_htons(ETH_P_IP);
	__builtin_memcpy(head + ETH_HLEN, &outer, sizeof(outer));
	head += ENCAP_INNER;
	if (out->family == 6)
		((struct ipv6hdr *)head)->hop_limit--;
	else
		ipv4_hop_at(head);
	skb->mark = 0;	   /* the outer packet is one of the node and follows its ordinary routes */
	skb->priority = 0; /* that of a pod's socket is no business of the node's queues */
	return CONTINUE;
}

/* to_node sends what a pod sends to the node of its destination: REDIRECTED, PASS when the stack shall do that, or a drop, also when the packet is too
 * long; then *mtu bytes would fit. Its own function, so that its caller has little on the stack. */
__attribute__((noinline)) int to_node(struct __sk_buff *skb, const struct endpoint_facts *self, __u32 *mtu)
{
	struct encap *encap = encap_now();
	struct to_node out = {};
	verdict v;

	/* Before netdev_ingress decapsulates, the node's connection tracking would see the replies alone, and take them for invalid. */
	if (!self || !mtu || !encap || protocol_written() < PROTOCOL_DECAPSULATES || !to_node_read(skb, &out) || !has_address(self, &out.from) || !to_node_ends(&out))
		return PASS;
	v = to_node_route(skb, &out, encap->mtu);
	if (v == STEP_TOO_BIG) {
		if (out.may_fragment || out.mtu < (out.family == 6 ? IPV6_MTU_MIN : IPV4_MTU_MIN))
			return PASS; /* the stack or the device cuts it */
		*mtu = out.mtu;
		return DROP_ALOUD(FILE_TO_NODE, REASON_TOO_BIG);
	}
	if (v != CONTINUE || !bpf_map_lookup_elem(&netdevs, &out.ifindex))
		return PASS;
	if ((v = to_node_wrap(skb, &out, overlay_vni(self->identity), encap)) != CONTINUE)
		return v;
	return bpf_redirect_neigh(out.ifindex, &out.hop, sizeof(out.hop), 0) == REDIRECTED ? REDIRECTED : DROP(FILE_TO_NODE, REASON_WRITE);
}
