/* The ways on which a packet leaves a program. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_packet.h>
#include <bpf/bpf_helpers.h>
#include "endpoint.h"
#include "eth.h"
#include "mark.h"
#include "reasons.h"

/* deliver_addressed puts a packet that has the addresses of the link into a pod's namespace, past the host end. Only ingress hooks can do that. */
static __always_inline verdict deliver_addressed(struct __sk_buff *skb, const struct endpoint_facts *to)
{
	skb->mark = 0; /* older kernels keep it over this redirect; it is no business of the pod's */
	return bpf_redirect_peer(to->ifindex, 0) == REDIRECTED ? REDIRECTED : DROP(FILE_DELIVER, REASON_WRITE);
}

/* deliver_peer does the same to any packet. */
static __always_inline verdict deliver_peer(struct __sk_buff *skb, const struct endpoint_facts *to)
{
	verdict v = eth_address(skb, to->pod_mac, to->host_mac);

	return v == CONTINUE ? deliver_addressed(skb, to) : v;
}

/* deliver_answer returns to a pod what it asked of its gateway. The question may have been a broadcast, and the pod's
 * kernel believes replies at once only when they are addressed to it. Newer kernels forget the type on the way. */
static __always_inline verdict deliver_answer(struct __sk_buff *skb, const struct endpoint_facts *self)
{
	bpf_skb_change_type(skb, PACKET_HOST);
	return deliver_peer(skb, self);
}

/* deliver_link sends a packet out of a host end, where pod_ingress judges it. */
static __always_inline verdict deliver_link(struct __sk_buff *skb, const struct endpoint_facts *to)
{
	verdict v = eth_address(skb, to->pod_mac, to->host_mac);

	if (v != CONTINUE)
		return v;
	return bpf_redirect(to->ifindex, 0) == REDIRECTED ? REDIRECTED : DROP(FILE_DELIVER, REASON_WRITE);
}

/* deliver_stack hands a packet from a pod to the node, marked with who sent it. Our nftables rule lets no packet from
 * a pod pass without the mark. */
static __always_inline verdict deliver_stack(struct __sk_buff *skb, const struct endpoint_facts *from)
{
	skb->mark = mark_of(from->identity);
	return PASS;
}
