/* Packets from outside that change nothing about an established flow of a pod: they are put straight into its namespace, past the pod's program. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "conntrack.h"
#include "endpoint.h"
#include "ipcache.h"
#include "l4.h"
#include "metrics.h"
#include "reasons.h"
#include "whole.h"

#define ESTABLISHED_TCP_LENGTH 20
#define ESTABLISHED_UDP_LENGTH 8
#define ESTABLISHED_TCP_FLAGS_AT 13 /* offset in the header */

/* established_ports reads the ports of TCP or UDP. It reports whether the packet may be one that changes nothing about its flow. */
static __always_inline int established_ports(struct __sk_buff *skb, const struct whole *packet, struct l4 *l4)
{
	__u32 at = whole_at(packet), is_tcp = packet->protocol == IPPROTO_TCP;
	__u8 flags = 0;

	if (!whole_has_ports(packet) || ETH_HLEN + packet->length < at + (is_tcp ? ESTABLISHED_TCP_LENGTH : ESTABLISHED_UDP_LENGTH))
		return 0;
	if (is_tcp && bpf_skb_load_bytes(skb, at + ESTABLISHED_TCP_FLAGS_AT, &flags, sizeof(flags)))
		return 0;
	*l4 = (struct l4){ .sport = packet->ports[0], .dport = packet->ports[1], .protocol = packet->protocol, .role = L4_PLAIN, .tcp_flags = flags };
	return !(flags & (TCP_SYN | TCP_FIN | TCP_RST));
}

/* established_is_valid reports whether the cached verdict of an entry applies to a packet for an endpoint, as flow_verdict_valid does for packets that the stack
 * delivers. own is the end of the entry that is the endpoint. */
static __always_inline int established_is_valid(const struct ct_entry *entry, __u32 own, const struct endpoint_facts *self, const struct whole *packet,
						__u32 tunnelled, __u32 identity)
{
	struct addr_key peer = packet->from; /* helpers of Linux 6.1 take no key from the memory of a caller */

	if (ct_end_id(entry, own) != self->id || ct_end_revision(entry, own) != self->revision || ct_end_id(entry, !own))
		return 0;
	/* A flow that was allowed as host traffic is not reusable by a packet of another origin, even if SNAT gave it the node's address. */
	if (own && entry->initiator_identity == IDENTITY_HOST)
		return 0;
	/* If ipcache does not know the sender, no epoch shows that another pod has its address now. */
	if (tunnelled && ct_end_identity(entry, !own) != identity)
		return 0;
	return entry->epochs == epochs_of(&peer, 0);
}

/* established_passes reports whether the pod's program would pass a packet that changes nothing about an established flow (track_quickly), and then counts it in
 * the same way. The packet may have been translated since netdev_ingress read it. identity is the identity of the sender, for a packet from the
 * tunnel. */
__attribute__((noinline)) int established_passes(struct __sk_buff *skb, const struct whole *packet, const struct endpoint_facts *self, __u32 tunnelled, __u32 identity)
{
	__u32 now = ct_now(), second, check;
	struct ct_entry *entry;
	union ct_key key;
	struct l4 l4;

	if (!packet || !self || !established_ports(skb, packet, &l4))
		return 0;
	if (packet->family == 6) {
		second = ct_key6_make(&key, packet->from.addr, packet->to.addr, &l4);
		check = ct_check(&key, sizeof(key.v6) / 8);
	} else {
		second = ct_key4_make(&key, packet->from.addr, packet->to.addr, &l4);
		check = ct_check(&key, sizeof(key.v4) / 8);
	}
	entry = ct_established(&key, packet->family);
	if (!entry || entry->check != check || (entry->flags & CT_TRANSLATED) || !ct_is_open(entry, packet->protocol, now))
		return 0;
	if (!established_is_valid(entry, ct_end(entry, second ^ 1), self, packet, tunnelled, identity))
		return 0;
	ct_continue(entry, packet->protocol, now, skb->len);
	metrics_count(REASON_FORWARDED, DIRECTION_INGRESS, skb->len);
	return 1;
}
