//go:build ignore

/* Ingress of the host end of each pod's link: all packets that a pod sends. The fast path completes its packets here; pod_slow handles all others. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "lib/drop.h"
#include "lib/endpoint.h"
#include "lib/eth.h"
#include "lib/fast.h"
#include "lib/flow.h"
#include "lib/ipv4.h"
#include "lib/ipv6.h"
#include "lib/nd.h"
#include "lib/pod_steps.h"
#include "lib/reasons.h"
#include "lib/track.h"

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
		return packet.protocol == IPPROTO_IGMP ? DROP(FILE_POD_EGRESS, REASON_CONTROL_TRAFFIC) :
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
	if ((v = nd_evaluate(skb, &packet)) != CONTINUE)
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

static __always_inline verdict evaluate(struct __sk_buff *skb, struct observation *obs)
{
	const struct endpoint_facts *self = endpoint_by_link(skb->ifindex);
	struct flow *flow = flow_work(DIRECTION_EGRESS);
	__be16 proto;
	verdict v;

	if (!self || !flow)
		return DROP(FILE_POD_EGRESS, REASON_UNKNOWN_SENDER);
	obs->endpoint = flow->self = self->id;
	obs->src_label = self->identity;
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
		return STEP_NEIGHBOR;
	default:
		return DROP(FILE_POD_EGRESS, REASON_UNKNOWN_L3);
	}
	if (v != CONTINUE)
		return v;
	return sent(skb, self, flow, track(skb, flow, self, 1), obs, 0);
}

SEC("tc")
int pod_slow(struct __sk_buff *skb)
{
	struct observation obs = { .direction = DIRECTION_EGRESS };
	verdict v = evaluate(skb, &obs);

	return conclude(skb, v, &obs);
}

SEC("tc")
int pod_egress(struct __sk_buff *skb)
{
	int action = fast(skb);

	if (action == NOT_FAST)
		return conclude_slow(skb);
	if (action != FAST_STACK)
		return action;
	conclude_stack(skb);
	return TC_ACT_OK;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
