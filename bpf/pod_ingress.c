//go:build ignore

/* Egress of the host end of each pod's link: packets that the node's stack sends to a pod. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "lib/drop.h"
#include "lib/endpoint.h"
#include "lib/eth.h"
#include "lib/flow.h"
#include "lib/ipv4.h"
#include "lib/ipv6.h"
#include "lib/nd.h"
#include "lib/pod_service.h"
#include "lib/reasons.h"
#include "lib/track.h"

__attribute__((noinline)) int to_ipv4(struct __sk_buff *skb, const struct endpoint_facts *self, struct flow *flow)
{
	struct ipv4_packet packet;
	verdict v;

	if (!self || !flow)
		return DROP(FILE_POD_INGRESS, REASON_NO_ENDPOINT);
	if ((v = ipv4_parse(skb, &packet)) != CONTINUE)
		return v;
	if (ipv4_is_group(packet.daddr))
		return packet.protocol == IPPROTO_IGMP ? DROP(FILE_POD_INGRESS, REASON_CONTROL_TRAFFIC) :
							 DROP(FILE_POD_INGRESS, REASON_MULTICAST);
	if (!endpoint_has_ipv4(self, packet.daddr))
		return DROP(FILE_POD_INGRESS, REASON_UNKNOWN_TARGET);
	flow_of_ipv4(flow, &packet);
	return CONTINUE;
}

__attribute__((noinline)) int to_ipv6(struct __sk_buff *skb, const struct endpoint_facts *self, struct flow *flow)
{
	struct ipv6_packet packet;
	verdict v;

	if (!self || !flow)
		return DROP(FILE_POD_INGRESS, REASON_NO_ENDPOINT);
	if ((v = ipv6_parse(skb, &packet)) != CONTINUE)
		return v;
	if ((v = ipv6_skip_extensions(skb, &packet)) != CONTINUE)
		return v;
	if ((v = nd_from_host(skb, &packet)) != CONTINUE)
		return v;
	if (ipv6_is_group(&packet.daddr))
		return DROP(FILE_POD_INGRESS, REASON_MULTICAST);
	if (!endpoint_has_ipv6(self, &packet.daddr))
		return DROP(FILE_POD_INGRESS, REASON_UNKNOWN_TARGET);
	flow_of_ipv6(flow, &packet);
	return CONTINUE;
}

/* deliver delivers a packet to the pod. The stack does not resolve neighbours on these links, so the MAC addresses may have any value. */
static __noinline verdict deliver(struct __sk_buff *skb, const struct endpoint_facts *self, struct flow *flow)
{
	verdict v;

	if (flow->service == FLOW_OF_BACKEND) {
		v = flow->inner_at ? pod_translate_back_error(skb, flow) : pod_translate_back(skb, flow);
		if (v != CONTINUE)
			return v;
	}
	v = eth_address(skb, self->pod_mac, self->host_mac);
	return v == CONTINUE ? PASS : v;
}

static __always_inline verdict evaluate(struct __sk_buff *skb, struct observation *obs)
{
	const struct endpoint_facts *self = endpoint_by_link(skb->ifindex);
	struct flow *flow = flow_work(DIRECTION_INGRESS);
	__be16 proto;
	verdict v;

	if (!self || !flow)
		return DROP(FILE_POD_INGRESS, REASON_NO_ENDPOINT);
	obs->endpoint = flow->self = self->id;
	obs->dst_id = self->id;
	obs->dst_label = self->identity;
	if ((v = eth_parse(skb, &proto)) != CONTINUE)
		return v;
	switch (proto) {
	case bpf_htons(ETH_P_IP):
		v = to_ipv4(skb, self, flow);
		break;
	case bpf_htons(ETH_P_IPV6):
		v = to_ipv6(skb, self, flow);
		break;
	case bpf_htons(ETH_P_ARP):
		return DROP(FILE_POD_INGRESS, REASON_CONTROL_TRAFFIC); /* the node does not need to send requests */
	default:
		return DROP(FILE_POD_INGRESS, REASON_UNKNOWN_L3);
	}
	if (v != CONTINUE)
		return v;
	v = track(skb, flow, self, 0);
	obs->src_label = flow->peer_identity;
	return v == CONTINUE ? deliver(skb, self, flow) : v;
}

SEC("tc")
int pod_ingress(struct __sk_buff *skb)
{
	struct observation obs = { .direction = DIRECTION_INGRESS };
	verdict v = evaluate(skb, &obs);

	return finish(skb, v, &obs, TC_ACT_OK);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
