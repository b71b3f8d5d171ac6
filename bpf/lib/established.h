/* Packets from outside that change nothing about an established flow of a pod: they are put straight into its namespace, past the pod's program. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "conntrack.h"
#include "endpoint.h"
#include "flow.h"
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
	__be16 ports[2];
	__u8 flags = 0;

	if (!is_tcp && packet->protocol != IPPROTO_UDP)
		return 0;
	if (ETH_HLEN + packet->length < at + (is_tcp ? ESTABLISHED_TCP_LENGTH : ESTABLISHED_UDP_LENGTH) || bpf_skb_load_bytes(skb, at, ports, sizeof(ports)))
		return 0;
	if (is_tcp && bpf_skb_load_bytes(skb, at + ESTABLISHED_TCP_FLAGS_AT, &flags, sizeof(flags)))
		return 0;
	*l4 = (struct l4){ .sport = ports[0], .dport = ports[1], .protocol = packet->protocol, .role = L4_PLAIN, .tcp_flags = flags };
	return !(flags & (TCP_SYN | TCP_FIN | TCP_RST));
}

/* established_passes reports whether the pod's program would pass a packet that changes nothing about an established flow (track_quickly), and then counts it in
 * the same way. The packet may have been translated since netdev_ingress read it. identity is the identity of the sender, for a packet from the
 * tunnel. */
__attribute__((noinline)) int established_passes(struct __sk_buff *skb, const struct whole *packet, const struct endpoint_facts *self, __u32 tunnelled, __u32 identity)
{
	struct flow *flow = flow_current();
	struct ct_entry *entry;
	union ct_key key;

	if (!packet || !self || !flow || !established_ports(skb, packet, &flow->l4))
		return 0;
	flow->direction = DIRECTION_INGRESS;
	flow->from = packet->from;
	flow->to = packet->to;
	flow->family = packet->family;
	flow->foreign = 1;
	flow->tunnelled = tunnelled;
	flow->tunnelled_identity = identity;
	flow_name(flow);
	flow_date(flow, 1);
	key = flow->key; /* helpers of Linux 6.1 take no key from the flow */
	entry = ct_established(&key, flow->family);
	if (!entry || entry->check != flow->check || (entry->flags & CT_TRANSLATED))
		return 0;
	if (!flow_is_established(skb, flow, entry, self))
		return 0;
	metrics_count(REASON_FORWARDED, DIRECTION_INGRESS, skb->len);
	return 1;
}
