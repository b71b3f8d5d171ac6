//go:build ignore

/* Ingress of the host end of each pod's link: everything that a pod sends. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "arp.h"
#include "deliver.h"
#include "drop.h"
#include "endpoint.h"
#include "eth.h"
#include "ipv4.h"
#include "ipv6.h"
#include "metrics.h"
#include "nd.h"
#include "policy.h"
#include "reasons.h"

/* admit_at judges a packet once more, as the endpoint that it is for sees it. */
static __always_inline verdict admit_at(const struct endpoint_facts *to, struct observation *seen)
{
	seen->direction = DIRECTION_INGRESS;
	seen->dst_id = to->id;
	seen->dst_label = to->identity;
	return policy_judge(to->policy_ingress);
}

/* expired hands a packet whose hops run out to the stack, which tells the sender. */
static __always_inline verdict expired(struct __sk_buff *skb, const struct endpoint_facts *self, struct observation *seen)
{
	seen->direction = DIRECTION_EGRESS;
	return deliver_stack(skb, self);
}

/* deliver_local counts a packet as sent; it will be counted as received when its way ends. */
static __always_inline verdict deliver_local(struct __sk_buff *skb, const struct endpoint_facts *to)
{
	metrics_count(REASON_FORWARDED, DIRECTION_EGRESS, skb->len);
	return deliver_peer(skb, to);
}

static __always_inline verdict from_ipv4(struct __sk_buff *skb, const struct endpoint_facts *self, struct observation *seen)
{
	struct ipv4_packet packet;
	struct endpoint_facts *to;
	struct endpoint_ref *ref;
	struct addr_key key;
	verdict v;

	if ((v = ipv4_parse(skb, &packet)) != CONTINUE)
		return v;
	if (!endpoint_has_ipv4(self, packet.saddr))
		return DROP(FILE_POD_EGRESS, REASON_SOURCE_IP);
	if (ipv4_is_group(packet.daddr))
		return packet.protocol == IPPROTO_IGMP ? DROP(FILE_POD_EGRESS, REASON_HOUSEKEEPING) :
							 DROP(FILE_POD_EGRESS, REASON_MULTICAST);
	if (!eth_to(skb, self->host_mac))
		return DROP(FILE_POD_EGRESS, REASON_DESTINATION_MAC);
	if ((v = policy_judge(self->policy_egress)) != CONTINUE)
		return v;

	key = addr_key_ipv4(packet.daddr);
	ref = bpf_map_lookup_elem(&bpf_endpoints, &key);
	if (!ref || (ref->flags & ADDRESS_HOST))
		return deliver_stack(skb, self);
	if (!(to = endpoint_by_id(ref->id)))
		return DROP(FILE_POD_EGRESS, REASON_NO_ENDPOINT);
	if (!endpoint_has_ipv4(to, packet.daddr))
		return DROP(FILE_POD_EGRESS, REASON_STALE_IP);
	if ((v = admit_at(to, seen)) != CONTINUE)
		return v;
	if (packet.ttl <= 1)
		return expired(skb, self, seen);
	if ((v = ipv4_hop(skb)) != CONTINUE)
		return v;
	return deliver_local(skb, to);
}

static __always_inline verdict from_ipv6(struct __sk_buff *skb, const struct endpoint_facts *self, struct observation *seen)
{
	struct ipv6_packet packet;
	struct endpoint_facts *to;
	struct endpoint_ref *ref;
	struct addr_key key;
	verdict v;

	if ((v = ipv6_parse(skb, &packet)) != CONTINUE)
		return v;
	if ((v = ipv6_skip_extensions(skb, &packet)) != CONTINUE)
		return v;
	if ((v = nd_judge(skb, self, &packet)) != CONTINUE)
		return v;
	if (!endpoint_has_ipv6(self, &packet.saddr) &&
	    !(ipv6_is_group(&packet.daddr) && ipv6_is_link_local(&packet.saddr)))
		return DROP(FILE_POD_EGRESS, REASON_SOURCE_IP);
	if (ipv6_is_group(&packet.daddr))
		return DROP(FILE_POD_EGRESS, REASON_MULTICAST);
	if (!eth_to(skb, self->host_mac))
		return DROP(FILE_POD_EGRESS, REASON_DESTINATION_MAC);
	if ((v = policy_judge(self->policy_egress)) != CONTINUE)
		return v;

	key = addr_key_ipv6(&packet.daddr);
	ref = bpf_map_lookup_elem(&bpf_endpoints, &key);
	if (!ref || (ref->flags & ADDRESS_HOST))
		return deliver_stack(skb, self);
	if (!(to = endpoint_by_id(ref->id)))
		return DROP(FILE_POD_EGRESS, REASON_NO_ENDPOINT);
	if (!endpoint_has_ipv6(to, &packet.daddr))
		return DROP(FILE_POD_EGRESS, REASON_STALE_IP);
	if ((v = admit_at(to, seen)) != CONTINUE)
		return v;
	if (packet.hop_limit <= 1)
		return expired(skb, self, seen);
	if ((v = ipv6_hop(skb)) != CONTINUE)
		return v;
	return deliver_local(skb, to);
}

static __always_inline verdict judge(struct __sk_buff *skb, struct observation *seen)
{
	const struct endpoint_facts *self = endpoint_by_link(skb->ifindex);
	__be16 proto;
	verdict v;

	if (!self)
		return DROP(FILE_POD_EGRESS, REASON_UNKNOWN_SENDER);
	seen->endpoint = self->id;
	seen->src_label = self->identity;
	if ((v = eth_parse(skb, &proto)) != CONTINUE)
		return v;
	if (!eth_from(skb, self->pod_mac))
		return DROP(FILE_POD_EGRESS, REASON_SOURCE_MAC);
	switch (proto) {
	case bpf_htons(ETH_P_IP):
		return from_ipv4(skb, self, seen);
	case bpf_htons(ETH_P_IPV6):
		return from_ipv6(skb, self, seen);
	case bpf_htons(ETH_P_ARP):
		return arp_answer(skb, self);
	}
	return DROP(FILE_POD_EGRESS, REASON_UNKNOWN_L3);
}

SEC("tc")
int pod_egress(struct __sk_buff *skb)
{
	struct observation seen = { .direction = DIRECTION_EGRESS };
	verdict v = judge(skb, &seen);

	return finish(skb, v, &seen, TC_ACT_OK);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
