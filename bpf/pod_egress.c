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
#include "fast.h"
#include "flow.h"
#include "ipv4.h"
#include "ipv6.h"
#include "metrics.h"
#include "nd.h"
#include "pod_service.h"
#include "reasons.h"
#include "reject.h"
#include "track.h"

/* deliver_local counts a packet as sent; it will be counted as received when its way ends. */
static __always_inline verdict deliver_local(struct __sk_buff *skb, const struct endpoint_facts *to)
{
	metrics_count(REASON_FORWARDED, DIRECTION_EGRESS, skb->len);
	return deliver_peer(skb, to);
}

/* deliver brings a packet whose flow allows it to the peer or to the stack. */
static __always_inline verdict deliver(struct __sk_buff *skb, const struct endpoint_facts *self, struct flow *flow,
				       struct observation *seen)
{
	struct endpoint_facts *to;
	verdict v;

	if (flow->via_stack)
		return deliver_stack(skb, self);
	if (!(to = endpoint_by_id(flow->peer)))
		return DROP(FILE_POD_EGRESS, REASON_NO_ENDPOINT);
	if (flow->hops <= 1)
		return deliver_stack(skb, self); /* it tells the sender that the packet's hops run out */
	seen->direction = DIRECTION_INGRESS;
	if (flow->service == FLOW_OF_BACKEND && (v = pod_translate_back(skb, flow)) != CONTINUE)
		return v;
	v = flow->family == 6 ? ipv6_hop(skb) : ipv4_hop(skb);
	return v == CONTINUE ? deliver_local(skb, to) : v;
}

__attribute__((noinline)) int from_ipv4(struct __sk_buff *skb, const struct endpoint_facts *self, struct flow *flow)
{
	struct ipv4_packet packet;
	verdict v;

	if (!self || !flow)
		return DROP(FILE_POD_EGRESS, REASON_UNKNOWN_SENDER);
	if ((v = ipv4_parse(skb, &packet)) != CONTINUE)
		return v;
	if (!endpoint_has_ipv4(self, packet.saddr))
		return DROP(FILE_POD_EGRESS, REASON_SOURCE_IP);
	if (ipv4_is_group(packet.daddr))
		return packet.protocol == IPPROTO_IGMP ? DROP(FILE_POD_EGRESS, REASON_HOUSEKEEPING) :
							 DROP(FILE_POD_EGRESS, REASON_MULTICAST);
	if (ipv4_is_node_local(packet.daddr))
		return DROP(FILE_POD_EGRESS, REASON_STALE_IP);
	if (!eth_to(skb, self->host_mac))
		return DROP(FILE_POD_EGRESS, REASON_DESTINATION_MAC);
	flow_of_ipv4(flow, &packet);
	return CONTINUE;
}

__attribute__((noinline)) int from_ipv6(struct __sk_buff *skb, const struct endpoint_facts *self, struct flow *flow)
{
	struct ipv6_packet packet;
	verdict v;

	if (!self || !flow)
		return DROP(FILE_POD_EGRESS, REASON_UNKNOWN_SENDER);
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
	if (ipv6_is_link_local(&packet.daddr)) /* of the host end, which no policy could name */
		return DROP(FILE_POD_EGRESS, REASON_STALE_IP);
	if (!eth_to(skb, self->host_mac))
		return DROP(FILE_POD_EGRESS, REASON_DESTINATION_MAC);
	flow_of_ipv6(flow, &packet);
	return CONTINUE;
}

static __always_inline verdict judge(struct __sk_buff *skb, struct observation *seen)
{
	const struct endpoint_facts *self = endpoint_by_link(skb->ifindex);
	struct flow *flow = flow_work(DIRECTION_EGRESS);
	__be16 proto;
	verdict v;

	if (!self || !flow)
		return DROP(FILE_POD_EGRESS, REASON_UNKNOWN_SENDER);
	seen->endpoint = flow->self = self->id;
	seen->src_label = self->identity;
	if ((v = eth_parse(skb, &proto)) != CONTINUE)
		return v;
	if (!eth_from(skb, self->pod_mac))
		return DROP(FILE_POD_EGRESS, REASON_SOURCE_MAC);
	switch (proto) {
	case bpf_htons(ETH_P_IP):
		v = from_ipv4(skb, self, flow);
		break;
	case bpf_htons(ETH_P_IPV6):
		v = from_ipv6(skb, self, flow);
		break;
	case bpf_htons(ETH_P_ARP):
		return arp_answer(skb, self);
	default:
		return DROP(FILE_POD_EGRESS, REASON_UNKNOWN_L3);
	}
	if (v != CONTINUE)
		return v;
	v = track(skb, flow, self, 1);
	seen->dst_label = flow->peer_identity;
	if (flow->peer_refused) {
		seen->direction = DIRECTION_INGRESS;
		seen->dst_id = flow->peer;
	}
	return v == CONTINUE ? deliver(skb, self, flow, seen) : v;
}

/* tell lets a pod know that nobody takes what it sent, when the verdict says so. */
__attribute__((noinline)) int tell(struct __sk_buff *skb, verdict v)
{
	const struct endpoint_facts *self;

	if (!drop_is_aloud(v))
		return TC_ACT_SHOT;
	self = endpoint_by_link(skb->ifindex);
	return self && reject(skb, self->id, REJECT_NOBODY, 0) && deliver_answer(skb, self) == REDIRECTED ? TC_ACT_REDIRECT : TC_ACT_SHOT;
}

SEC("tc")
int pod_egress(struct __sk_buff *skb)
{
	struct observation seen = { .direction = DIRECTION_EGRESS };
	int action = fast(skb);
	verdict v;

	if (action != NOT_FAST)
		return action;
	v = judge(skb, &seen);
	action = finish(skb, v, &seen, TC_ACT_OK);
	return v < 0 ? tell(skb, v) : action;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
