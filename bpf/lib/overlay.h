/* The tunnel between nodes: VXLAN over IPv4 or IPv6. A device encapsulates and decapsulates, and reads the outer addresses and the VNI from the metadata of
 * each packet. The VNI is the identity of the sender. */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "endpoint.h"
#include "flow.h"
#include "ipcache.h"
#include "mark.h"
#include "nodes.h"
#include "overlay_state.h"
#include "reasons.h"

#define OVERLAY_TTL 64 /* of the outer header */

/* Priority of a test packet of the node. The device of the underlay must complete its checksum regardless of the slot of the peer, so that the test finds out
 * whether the device computes it correctly. */
#define OVERLAY_UNCOMPLETED 0x57470001

/* overlay_has_outer reports whether a packet has the form of one in the tunnel: a UDP datagram to the port of the tunnel. */
static __always_inline int overlay_has_outer(const struct flow *flow)
{
	return tunnel_port && flow->l4.protocol == IPPROTO_UDP && flow->l4.dport == bpf_htons(tunnel_port);
}

/* overlay_key sets the outer addresses of a packet to a node, and returns the flags with which the kernel reads them. */
static __always_inline __u64 overlay_key(struct bpf_tunnel_key *key, const struct node *node, const struct addr_key *to)
{
	if (to->family == 6) {
		__builtin_memcpy(key->remote_ipv6, to->addr, sizeof(key->remote_ipv6));
		__builtin_memcpy(key->local_ipv6, node->underlay_source, sizeof(key->local_ipv6));
		return BPF_F_TUNINFO_IPV6; /* with a checksum, without which receivers drop UDP over IPv6 */
	}
	key->remote_ipv4 = bpf_ntohl(*(const __be32 *)to->addr);
	key->local_ipv4 = bpf_ntohl(*(const __be32 *)node->underlay_source);
	return BPF_F_ZERO_CSUM_TX;
}

/* overlay_leads reports whether packets that leave by a device enter the tunnel. */
static __always_inline int overlay_leads(__u32 ifindex)
{
	struct overlay *now;

	return tunnel_port && (now = overlay_now()) && now->way && now->way == ifindex;
}

/* overlay_vni returns the VNI of packets of an endpoint with an identity. A number of this node alone does not fit into a VNI, and other nodes could not assign
 * it to a node. */
static __always_inline __u32 overlay_vni(__u32 identity) { return identity & IDENTITY_SCOPE ? IDENTITY_WORLD : identity; }

/* overlay_identity finds the VNI of a packet that leaves this node for another. Only endpoints of this node and the node itself send into the tunnel: for other
 * sources the receiver cannot know that they are behind this node. */
static __always_inline verdict overlay_identity(const struct addr_key *from, __u32 *identity)
{
	struct endpoint_ref *ref = bpf_map_lookup_elem(&bpf_endpoints, from);
	struct endpoint_facts *facts;

	if (!ref)
		return DROP(FILE_OVERLAY, REASON_SOURCE_IP);
	*identity = IDENTITY_REMOTE_NODE; /* what this node is for others */
	if (ref->flags & ADDRESS_HOST)
		return CONTINUE;
	if (!(facts = endpoint_by_id(ref->id)))
		return DROP(FILE_OVERLAY, REASON_STALE_IP);
	*identity = overlay_vni(facts->identity);
	return CONTINUE;
}

/* overlay_completes reports whether a packet must get its checksum before it enters the tunnel. The device for that passes it to its peer device, which runs
 * the same program as waggle_host. */
static __always_inline int overlay_completes(struct __sk_buff *skb, const struct overlay *now, const struct node *node)
{
	return node->ifindex && skb->ifindex == now->way && skb->priority != OVERLAY_UNCOMPLETED;
}

/* overlay_send sends a packet through the tunnel to the node of its destination. */
__attribute__((noinline)) int overlay_send(struct __sk_buff *skb, const struct addr_key *source, const struct addr_key *destination)
{
	struct bpf_tunnel_key key = { .tunnel_ttl = OVERLAY_TTL };
	struct overlay *now = overlay_now();
	struct addr_key from, to, outer;
	struct node *node;
	__u64 flags;
	__u32 id;
	verdict v;

	if (!source || !destination)
		return DROP(FILE_OVERLAY, REASON_INTERNAL);
	from = *source; /* helpers of Linux 6.1 take no key from the memory of a caller */
	to = *destination;
	if (!(id = ipcache_node(&to)))
		return DROP(FILE_OVERLAY, REASON_NO_ENDPOINT);
	if ((v = overlay_identity(&from, &key.tunnel_id)) != CONTINUE)
		return v;
	if (!now || !now->ifindex || !(node = node_underlay(id, &outer)))
		return DROP(FILE_OVERLAY, REASON_NO_TUNNEL);
	if (overlay_completes(skb, now, node))
		return bpf_redirect(node->ifindex, 0) == REDIRECTED ? REDIRECTED : DROP(FILE_OVERLAY, REASON_WRITE);
	flags = overlay_key(&key, node, &outer);
	if (bpf_skb_set_tunnel_key(skb, &key, sizeof(key), flags))
		return DROP(FILE_OVERLAY, REASON_WRITE);
	skb->mark = 0; /* the outer packet is one of the node and follows its ordinary routes */
	skb->tc_index = MARK_UNTRANSLATED;
	if (skb->priority == OVERLAY_UNCOMPLETED)
		skb->priority = 0;
	return bpf_redirect(now->ifindex, 0) == REDIRECTED ? REDIRECTED : DROP(FILE_OVERLAY, REASON_WRITE);
}
