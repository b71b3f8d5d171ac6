/* The paths by which a packet leaves a program. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_packet.h>
#include <bpf/bpf_helpers.h>
#include "endpoint.h"
#include "eth.h"
#include "mark.h"
#include "reasons.h"

/* deliver_addressed puts a packet that already has the MAC addresses of the link into a pod's namespace, past the host end. Only ingress hooks can do that. */
static __always_inline verdict deliver_addressed(struct __sk_buff *skb, const struct endpoint_facts *to)
{
	skb->mark = 0; /* older kernels keep it over this redirect; it is no business of the pod's */
	return bpf_redirect_peer(to->ifindex, 0) == REDIRECTED ? REDIRECTED : DROP(FILE_DELIVER, REASON_WRITE);
}

/* deliver_peer sets the MAC addresses, and then does the same. */
static __always_inline verdict deliver_peer(struct __sk_buff *skb, const struct endpoint_facts *to)
{
	verdict v = eth_address(skb, to->pod_mac, to->host_mac);

	return v == CONTINUE ? deliver_addressed(skb, to) : v;
}

/* deliver_reply returns the gateway's reply to the pod that sent the request. The request may have been a broadcast, and the pod's kernel accepts replies at
 * once only if they are addressed to it. Newer kernels reset the packet type on this path. */
static __always_inline verdict deliver_reply(struct __sk_buff *skb, const struct endpoint_facts *self)
{
	bpf_skb_change_type(skb, PACKET_HOST);
	return deliver_peer(skb, self);
}

/* deliver_link sends a packet out of a host end, where pod_ingress evaluates it. */
static __always_inline verdict deliver_link(struct __sk_buff *skb, const struct endpoint_facts *to)
{
	verdict v = eth_address(skb, to->pod_mac, to->host_mac);

	if (v != CONTINUE)
		return v;
	return bpf_redirect(to->ifindex, 0) == REDIRECTED ? REDIRECTED : DROP(FILE_DELIVER, REASON_WRITE);
}

/* deliver_stack passes a packet from a pod to the node's stack, with the identity of its sender in the mark. The nftables rule drops every packet from a pod
 * that does not have the mark. */
static __always_inline verdict deliver_stack(struct __sk_buff *skb, const struct endpoint_facts *from)
{
	skb->mark = mark_of(from->identity);
	return PASS;
}
