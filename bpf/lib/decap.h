/* Decapsulation of packets from other nodes for pods on this node, without the tunnel device and the stack. A packet changes only after all checks: packets
 * that are unusual, or must not arrive, stay unchanged, and the device and overlay_ingress handle them. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "deliver_in.h"
#include "encap.h"
#include "endpoint.h"
#include "established.h"
#include "evaluate.h"
#include "ipv4.h"
#include "ipv6.h"
#include "mark.h"
#include "masquerade_maps.h"
#include "nodes.h"
#include "overlay_inner.h"
#include "packet.h"
#include "path_cache.h"
#include "protocol.h"
#include "reasons.h"
#include "whole.h"

#define DECAP_ECN_CE 3

#define DECAP_TO_IPV6 (1 << 8) /* BPF_F_ADJ_ROOM_DECAP_L3_IPV6 of Linux 6.3 */

/* decap_outer reports whether this node has only to remove the outer header, and stores its addresses. */
static __always_inline int decap_outer(struct __sk_buff *skb, const struct iphdr *ip, const struct udphdr *udp, struct path_key *key)
{
	if (*(const __u8 *)ip != 0x45 || (ip->frag_off & ~bpf_htons(IPV4_DONT_FRAGMENT)) || ip->protocol != IPPROTO_UDP ||
	    udp->dest != bpf_htons(tunnel_port) || ETH_HLEN + bpf_ntohs(ip->tot_len) != skb->len)
		return 0;
	key->outer[0] = ip->saddr;
	key->outer[1] = ip->daddr;
	return 1;
}

/* decap_inner reads the ends of the inner packet, and reports whether the packet needs nothing from the stack. Fragments and extension headers are left to the
 * stack, as in pod_to_node: the node's connection tracking treats a reply as invalid if it has not seen the request. */
static __always_inline int decap_inner(struct __sk_buff *skb, struct path_key *key, void *head, const void *end, __be16 proto)
{
	struct iphdr *ipv4 = head + ENCAP_INNER;
	struct ipv6hdr *ipv6 = head + ENCAP_INNER;

	if (proto == bpf_htons(ETH_P_IP)) {
		if (!(encap_modes & ENCAP_RECEIVES_IPV4) || *(__u8 *)ipv4 != 0x45 || (ipv4->frag_off & ~bpf_htons(IPV4_DONT_FRAGMENT)) ||
		    ipv4->ttl <= 1 || ENCAP_INNER + bpf_ntohs(ipv4->tot_len) != skb->len)
			return 0;
		key->from = addr_key_ipv4(ipv4->saddr);
		key->to = addr_key_ipv4(ipv4->daddr);
		return 1;
	}
	if (proto != bpf_htons(ETH_P_IPV6) || !(encap_modes & ENCAP_RECEIVES_IPV6) || (void *)(ipv6 + 1) > end)
		return 0;
	if (ipv6->version != 6 || ipv6->hop_limit <= 1 || ipv6_is_extension(ipv6->nexthdr) ||
	    ENCAP_INNER + sizeof(*ipv6) + bpf_ntohs(ipv6->payload_len) != skb->len)
		return 0;
	key->from = addr_key_ipv6(&ipv6->saddr);
	key->to = addr_key_ipv6(&ipv6->daddr);
	return 1;
}

/* decap_read reads a packet of the tunnel. It reports whether the program can decapsulate the packet. */
__attribute__((noinline)) int decap_read(struct __sk_buff *skb, struct path_key *key)
{
	struct encap_headers *outer;
	void *head;
	__u32 vni;

	/* An aggregate would stay one of tunnel packets. */
	if (!key || skb->protocol != bpf_htons(ETH_P_IP) || skb->vlan_present || skb->pkt_type != PACKET_HOST || skb->gso_size ||
	    !(head = packet_head(skb, ENCAP_INNER + sizeof(struct iphdr))))
		return 0;
	outer = head + ETH_HLEN;
	*key = (struct path_key){};
	if (!decap_outer(skb, head + ETH_HLEN, head + ETH_HLEN + sizeof(struct iphdr), key))
		return 0;
	if ((outer->ip.tos & DECAP_ECN_CE) == DECAP_ECN_CE) /* the inner packet would have to carry the congestion mark */
		return 0;
	if (ETH_HLEN + sizeof(outer->ip) + bpf_ntohs(outer->udp.len) != skb->len || outer->flags != bpf_htonl(VXLAN_FLAGS))
		return 0;
	if (outer->udp.check && bpf_csum_level(skb, BPF_CSUM_LEVEL_QUERY) < 0) /* no device has verified it */
		return 0;
	vni = bpf_ntohl(outer->vni) >> VXLAN_VNI_SHIFT;
	if ((outer->vni & bpf_htonl((1 << VXLAN_VNI_SHIFT) - 1)) || vni == IDENTITY_UNKNOWN || vni == IDENTITY_HOST)
		return 0;
	key->vni = vni;
	key->input = skb->ifindex;
	key->use = PATH_DECAPSULATE;
	return decap_inner(skb, key, head, PACKET_FIELD(skb, data_end), outer->eth.h_proto);
}

/* decap_strip removes the outer headers. PASS when the kernel rejects this; the packet is then unchanged. */
__attribute__((noinline)) int decap_strip(struct __sk_buff *skb, __u32 family)
{
	__u64 flags = BPF_F_ADJ_ROOM_NO_CSUM_RESET;
	struct ethhdr *eth;
	void *head;

	if (family == 6)
		flags |= DECAP_TO_IPV6;
	if (bpf_skb_adjust_room(skb, -ENCAP_LENGTH, BPF_ADJ_ROOM_MAC, flags))
		return PASS;
	bpf_csum_level(skb, BPF_CSUM_LEVEL_DEC); /* what the device verified of the outer packet says nothing of the inner one */
	if (!(head = packet_head(skb, ETH_HLEN + sizeof(struct iphdr))))
		return DROP(FILE_DECAP, REASON_WRITE);
	eth = head;
	head += ETH_HLEN;
	if (family == 6) {
		eth->h_proto = bpf_htons(ETH_P_IPV6);
		((struct ipv6hdr *)head)->hop_limit--;
		bpf_csum_update(skb, bpf_htons(0xfffe)); /* of a sum over the whole packet that a device has made; in IPv4 the checksum makes up for the TTL */
	} else {
		ipv4_hop_at(head);
	}
	return CONTINUE;
}

/* decap_node finds the node that sent a packet of the tunnel to this node. It reports whether there is one. */
__attribute__((noinline)) int decap_node(const struct path_key *sent, __u32 *node)
{
	struct addr_key key;
	__u32 receiver;

	if (!sent || !node)
		return 0;
	key = addr_key_ipv4(sent->outer[1]);
	if (!node_of_underlay(&key, &receiver) || receiver != NODE_THIS)
		return 0;
	key = addr_key_ipv4(sent->outer[0]);
	return node_of_underlay(&key, node) && *node != NODE_THIS;
}

/* decap_look_up finds the pod that has the inner destination, and the identity of the sender, and stores them. It reports whether the program can deliver the
 * packet: it is from a node, for this node, its inner source is of that node, and it fits. */
__attribute__((noinline)) int decap_look_up(struct __sk_buff *skb, const struct path_key *key, struct path *path)
{
	__u32 mtu = 0, ifindex = skb->ifindex, revision, node;
	struct endpoint_facts *facts;
	struct endpoint_ref *ref;
	struct addr_key to;

	if (!key || !path || !bpf_map_lookup_elem(&netdevs, &ifindex) || !decap_node(key, &node))
		return 0;
	to = key->to;
	if (inner(&key->from, &key->to, node) != PASS || !(ref = bpf_map_lookup_elem(&bpf_endpoints, &to)) || !(facts = endpoint_by_id(ref->id)))
		return 0;
	revision = path_begin(facts);
	if (!has_address(facts, &to) || bpf_check_mtu(skb, facts->ifindex, &mtu, -ENCAP_LENGTH, 0))
		return 0;
	path_fill(path, key, skb->len, facts->id, revision);
	path->identity = sender(skb, &key->from, key->vni);
	if (path->identity == key->vni || path->identity == IDENTITY_UNKNOWN) /* sender counts each packet with another identity */
		path_publish(path, PATH_DECAPSULATE);
	return 1;
}

/* decap_deliver delivers the inner packet to a pod: one of an established flow straight into its namespace, any other to the pod's program. */
__attribute__((noinline)) int decap_deliver(struct __sk_buff *skb, const struct endpoint_facts *to, __u32 identity)
{
	struct path_work *work = path_work();
	int established;

	if (!to || !work)
		return DROP(FILE_DECAP, REASON_NO_ENDPOINT);
	skb->mark = mark_of(identity); /* that of overlay_ingress */
	established = whole_read(skb, &work->packet) && established_passes(skb, &work->packet, to, 1, mark_identity(mark_of(identity)));
	if (!established)
		skb->tc_index = ENCAP_TC_INDEX;
	return deliver_in(skb, to, established);
}

/* decapsulate delivers a packet of the tunnel to its pod, whose program evaluates it. PASS for all others, which stay unchanged. */
__attribute__((noinline)) int decapsulate(struct __sk_buff *skb)
{
	struct path_work *work = path_work();
	struct endpoint_facts *facts;
	struct path_key *key;
	struct path *path;
	__u32 identity;
	verdict v;

	if (!work || !encap_modes || link_header != ETH_HLEN || protocol_written() < PROTOCOL_DECAPSULATES)
		return PASS;
	key = &work->key;
	if (!decap_read(skb, key) || !(path = path_slot(key)))
		return PASS;
	if (!(facts = path_endpoint(path, key, skb->len)) &&
	    (!decap_look_up(skb, key, path) || !(facts = endpoint_by_id(path->endpoint))))
		return PASS;
	identity = path->identity;
	if ((v = decap_strip(skb, key->from.family)) != CONTINUE)
		return v;
	return decap_deliver(skb, facts, identity);
}
