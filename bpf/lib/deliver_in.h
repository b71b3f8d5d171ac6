/* Delivery of packets from outside of the node to its pods. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "deliver.h"
#include "endpoint.h"
#include "eth.h"
#include "reasons.h"

/* deliver_in delivers a packet to a pod: one of an established flow straight into its namespace, any other to the pod's program. It is a separate function,
 * which the verifier checks once for both paths between nodes. */
__attribute__((noinline)) int deliver_in(struct __sk_buff *skb, const struct endpoint_facts *to, int established)
{
	verdict v;

	if (!to)
		return DROP(FILE_DELIVER, REASON_NO_ENDPOINT);
	if ((v = eth_address(skb, to->pod_mac, to->host_mac)) != CONTINUE)
		return v;
	if (established)
		return deliver_addressed(skb, to);
	return bpf_redirect(to->ifindex, 0) == REDIRECTED ? REDIRECTED : DROP(FILE_DELIVER, REASON_WRITE);
}
