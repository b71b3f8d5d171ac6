/* The steps of pod_egress: programs that it enters by a tail call for all packets outside of the fast path. The verifier checks each step
 * separately. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "arp.h"
#include "deliver.h"
#include "drop.h"
#include "endpoint.h"
#include "eth.h"
#include "flow.h"
#include "ipv4.h"
#include "ipv6.h"
#include "metrics.h"
#include "nat.h"
#include "nat_find.h"
#include "nat_rewrite.h"
#include "nd.h"
#include "overlay_state.h"
#include "path_send.h"
#include "pod_service.h"
#include "reasons.h"
#include "reject.h"
#include "related.h"
#include "track.h"
#include "whole.h"

enum pod_step {
	POD_STEP_NEIGHBOR = 0,
	POD_STEP_ERROR = 1,
	POD_STEP_SERVICE = 2,
	POD_STEP_REFUSE = 3,
	POD_STEP_TO_NODE = 4,
	POD_STEP_SLOW = 5,
	POD_STEPS = 6,
};

int pod_neighbor(struct __sk_buff *skb);
int pod_error(struct __sk_buff *skb);
int pod_service(struct __sk_buff *skb);
int pod_refuse(struct __sk_buff *skb);
int pod_to_node(struct __sk_buff *skb);
int pod_slow(struct __sk_buff *skb);

/* The kernel empties the map when no process has it open and no pin holds it, so the agent pins it. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, POD_STEPS);
	__type(key, __u32);
	__array(values, int(struct __sk_buff *));
} pod_steps SEC(".maps") = {
	.values = {
		[POD_STEP_NEIGHBOR] = pod_neighbor,
		[POD_STEP_ERROR] = pod_error,
		[POD_STEP_SERVICE] = pod_service,
		[POD_STEP_REFUSE] = pod_refuse,
		[POD_STEP_TO_NODE] = pod_to_node,
		[POD_STEP_SLOW] = pod_slow,
	},
};

/* conclude_stack enters the step that sends a packet to another node, past the stack. It returns when there is no such step: then the stack sends the
 * packet. */
static __always_inline void conclude_stack(struct __sk_buff *skb)
{
	if (direct_possible() || (encap_modes & ENCAP_SENDS))
		bpf_tail_call(skb, &pod_steps, POD_STEP_TO_NODE);
}

/* conclude converts the verdict on a packet of a pod into the action for the kernel, or enters the step that handles the packet. If the step cannot be entered,
 * the packet is dropped. */
static __always_inline int conclude(struct __sk_buff *skb, verdict v, const struct observation *obs)
{
	int action;

	switch (v) {
	case STEP_NEIGHBOR:
		bpf_tail_call(skb, &pod_steps, POD_STEP_NEIGHBOR);
		v = DROP(FILE_POD_STEPS, REASON_MISSED_STEP);
		break;
	case STEP_ERROR:
		bpf_tail_call(skb, &pod_steps, POD_STEP_ERROR);
		v = DROP(FILE_POD_STEPS, REASON_MISSED_STEP);
		break;
	case STEP_SERVICE:
		bpf_tail_call(skb, &pod_steps, POD_STEP_SERVICE);
		v = DROP(FILE_POD_STEPS, REASON_MISSED_STEP);
		break;
	}
	action = finish(skb, v, obs, TC_ACT_OK);
	if (v == PASS)
		conclude_stack(skb);
	if (drop_is_reject(v))
		bpf_tail_call(skb, &pod_steps, POD_STEP_REFUSE);
	return action;
}

/* deliver_local counts a packet as sent; it is counted as received on delivery. */
static __always_inline verdict deliver_local(struct __sk_buff *skb, const struct endpoint_facts *to)
{
	metrics_count(REASON_FORWARDED, DIRECTION_EGRESS, skb->len);
	return deliver_peer(skb, to);
}

/* deliver_node sends a packet into the tunnel to another node. That node sends through the tunnel from an address to which no route of this node into the tunnel
 * leads. The program of waggle_host finds the node. */
static __always_inline verdict deliver_node(struct __sk_buff *skb, const struct flow *flow)
{
	struct overlay *now = overlay_now();
	verdict v;

	if (!now || !now->way)
		return DROP(FILE_POD_STEPS, REASON_NO_TUNNEL);
	v = flow->family == 6 ? ipv6_hop(skb) : ipv4_hop(skb);
	if (v != CONTINUE)
		return v;
	skb->mark = 0;
	return bpf_redirect(now->way, 0) == REDIRECTED ? REDIRECTED : DROP(FILE_POD_STEPS, REASON_WRITE);
}

/* deliver sends an allowed packet to the peer or to the stack. */
static __always_inline verdict deliver(struct __sk_buff *skb, const struct endpoint_facts *self, struct flow *flow,
				       struct observation *obs, const int is_error)
{
	struct endpoint_facts *to;
	verdict v;

	if (flow->path == PATH_STACK)
		return tunnel_port && flow->by_tunnel && flow->ttl > 1 ? deliver_node(skb, flow) : deliver_stack(skb, self);
	if (!(to = endpoint_by_id(flow->peer)))
		return DROP(FILE_POD_STEPS, REASON_NO_ENDPOINT);
	if (flow->ttl <= 1)
		return deliver_stack(skb, self); /* the stack sends the ICMP error about the expired TTL */
	obs->direction = DIRECTION_INGRESS;
	if (flow->service == FLOW_OF_BACKEND) {
		v = is_error ? pod_translate_back_error(skb, flow) : pod_translate_back(skb, flow);
		if (v != CONTINUE)
			return v;
	}
	v = flow->family == 6 ? ipv6_hop(skb) : ipv4_hop(skb);
	return v == CONTINUE ? deliver_local(skb, to) : v;
}

/* observe records, for reports, that a pod is the sender. */
static __always_inline void observe(struct observation *obs, const struct endpoint_facts *self)
{
	obs->direction = DIRECTION_EGRESS;
	obs->endpoint = self->id;
	obs->src_label = self->identity;
}

/* conclude_slow enters the step for packets outside of the fast path, and drops the packet when there is no such step. */
static __always_inline int conclude_slow(struct __sk_buff *skb)
{
	struct observation obs = { .direction = DIRECTION_EGRESS };
	const struct endpoint_facts *self;

	bpf_tail_call(skb, &pod_steps, POD_STEP_SLOW);
	if ((self = endpoint_by_link(skb->ifindex)))
		observe(&obs, self);
	return drop(skb, DROP(FILE_POD_STEPS, REASON_MISSED_STEP), &obs);
}

/* sent delivers a packet by its verdict, and records its peer for reports. */
static __always_inline verdict sent(struct __sk_buff *skb, const struct endpoint_facts *self, struct flow *flow, verdict v, struct observation *obs,
				    const int is_error)
{
	obs->dst_label = flow->peer_identity;
	if (flow->peer_denied) {
		obs->direction = DIRECTION_INGRESS;
		obs->dst_id = flow->peer;
	}
	return v == CONTINUE ? deliver(skb, self, flow, obs, is_error) : v;
}

static __always_inline verdict neighbor(struct __sk_buff *skb, const struct endpoint_facts *self)
{
	struct ipv6_packet packet;
	__be16 proto;
	verdict v;

	if ((v = eth_parse(skb, &proto)) != CONTINUE)
		return v;
	if (proto == bpf_htons(ETH_P_ARP))
		return arp_reply(skb, self);
	if ((v = ipv6_parse(skb, &packet)) != CONTINUE || (v = ipv6_skip_extensions(skb, &packet)) != CONTINUE)
		return v;
	return nd_solicitation(skb, self, &packet);
}

/* pod_neighbor answers ARP and neighbor solicitations. */
SEC("tc")
int pod_neighbor(struct __sk_buff *skb)
{
	const struct endpoint_facts *self = endpoint_by_link(skb->ifindex);
	struct observation obs = {};
	verdict v = DROP(FILE_POD_STEPS, REASON_UNKNOWN_SENDER);

	if (self) {
		observe(&obs, self);
		v = neighbor(skb, self);
	}
	return finish(skb, v, &obs, TC_ACT_OK);
}

/* pod_error forwards an ICMP error about a packet of a flow. */
SEC("tc")
int pod_error(struct __sk_buff *skb)
{
	const struct endpoint_facts *self = endpoint_by_link(skb->ifindex);
	struct flow *flow = flow_current();
	struct observation obs = {};
	verdict v = DROP(FILE_POD_STEPS, REASON_UNKNOWN_SENDER);

	if (self && flow) {
		observe(&obs, self);
		if ((v = pod_translate_error(skb, flow, self)) == CONTINUE)
			v = sent(skb, self, flow, flow_related(skb, flow, self), &obs, 1);
	}
	return finish(skb, v, &obs, TC_ACT_OK);
}

/* pod_service forwards the first packet of a flow to a service. */
SEC("tc")
int pod_service(struct __sk_buff *skb)
{
	const struct endpoint_facts *self = endpoint_by_link(skb->ifindex);
	struct flow *flow = flow_current();
	struct observation obs = {};
	verdict v = DROP(FILE_POD_STEPS, REASON_UNKNOWN_SENDER);

	if (self && flow) {
		observe(&obs, self);
		if ((v = pod_begin_service(skb, flow, self)) == CONTINUE)
			v = sent(skb, self, flow, track_rest(skb, flow, self, 1), &obs, 0);
	}
	return conclude(skb, v, &obs);
}

/* pod_refuse returns a rejected packet to its sender as a reset, or an ICMP error. */
SEC("tc")
int pod_refuse(struct __sk_buff *skb)
{
	const struct endpoint_facts *self = endpoint_by_link(skb->ifindex);

	if (!self || !reject(skb, self->id, REJECT_NO_RECEIVER, 0) || deliver_reply(skb, self) != REDIRECTED)
		return TC_ACT_SHOT;
	return TC_ACT_REDIRECT;
}

/* pod_untranslate gives a packet that was translated the destination and the ports that its sender knows, so that an ICMP error quotes them: the kernel of the
 * pod ignores an error about a packet to a backend, because no socket has sent it. The packet must be whole; any other packet stays unchanged. A separate
 * function, to limit the use of the stack. */
__attribute__((noinline)) int pod_untranslate(struct __sk_buff *skb)
{
	struct nat_work *work = nat_work();
	struct whole packet = {};
	__be16 port;

	if (!work || !whole_read(skb, &packet))
		return CONTINUE;
	nat_key(work, &packet.to, &packet.from, packet.ports[1], packet.ports[0], packet.protocol, NAT_TO_POD);
	if (!nat_peek(packet.family))
		return CONTINUE;
	/* The entry is a reply to this packet, as the pod gets it. The packet that the pod sent has the same ends, exchanged. */
	nat_key(work, &packet.from, &packet.to, packet.ports[0], packet.ports[1], packet.protocol, NAT_FROM_POD);
	__builtin_memcpy(work->entry.daddr, work->entry.saddr, sizeof(work->entry.daddr));
	__builtin_memcpy(work->entry.saddr, packet.from.addr, sizeof(work->entry.saddr));
	port = work->entry.dport;
	work->entry.dport = work->entry.sport;
	work->entry.sport = port;
	return nat_rewrite(skb, packet.family, whole_at(&packet));
}

/* pod_to_node sends a packet, which was counted as forwarded, to the node of its destination, or leaves it to the stack. If the packet is too long, the sender
 * gets an ICMP error. */
SEC("tc")
int pod_to_node(struct __sk_buff *skb)
{
	const struct endpoint_facts *self;
	struct observation obs = {};
	__u32 mtu = 0;
	verdict v = path_send(skb, &mtu);

	if (v == PASS)
		return TC_ACT_OK;
	if (v == REDIRECTED)
		return TC_ACT_REDIRECT;
	if (!(self = endpoint_by_link(skb->ifindex)))
		return TC_ACT_SHOT;
	observe(&obs, self);
	drop(skb, v, &obs);
	if (!drop_is_reject(v) || pod_untranslate(skb) != CONTINUE || !reject(skb, self->id, REJECT_TOO_BIG, mtu) || deliver_reply(skb, self) != REDIRECTED)
		return TC_ACT_SHOT;
	return TC_ACT_REDIRECT;
}
