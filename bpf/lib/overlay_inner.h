/* Checks of packets that other nodes sent through the tunnel: permission, destination, and identity of the sender. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "endpoint.h"
#include "identities.h"
#include "ipcache.h"
#include "metrics.h"
#include "reasons.h"

/* inner checks the inner addresses: PASS for an endpoint, CONTINUE for the node itself. Packets for other nodes and for the outside are not
 * forwarded. */
__attribute__((noinline)) int inner(const struct addr_key *source, const struct addr_key *destination, __u32 node)
{
	struct endpoint_ref *ref;
	struct addr_key from, to;

	if (!source || !destination)
		return DROP(FILE_OVERLAY_INNER, REASON_INTERNAL);
	from = *source; /* helpers of Linux 6.1 take no key from the memory of a caller */
	to = *destination;
	if (ipcache_node(&from) != node || bpf_map_lookup_elem(&bpf_endpoints, &from)) /* a pod of this node whose range is the sender's by now */
		return DROP(FILE_OVERLAY_INNER, REASON_TUNNEL_SOURCE);
	if (!(ref = bpf_map_lookup_elem(&bpf_endpoints, &to)))
		return DROP(FILE_OVERLAY_INNER, REASON_NO_ENDPOINT);
	return ref->flags & ADDRESS_HOST ? CONTINUE : PASS;
}

/* sender returns the identity of the sender of the inner packet: the one in ipcache, or the VNI for a pod that ipcache does not know. With a number that is not
 * of the cluster, or that policies do not know yet, the sender is unknown. */
__attribute__((noinline)) int sender(struct __sk_buff *skb, const struct addr_key *source, __u32 vni)
{
	struct addr_key from;
	__u32 identity;

	if (!source)
		return IDENTITY_UNKNOWN;
	from = *source; /* helpers of Linux 6.1 take no key from the memory of a caller */
	identity = ipcache_identity(&from);
	if (identity == IDENTITY_UNKNOWN)
		return identity_is_known(vni) ? vni : IDENTITY_UNKNOWN;
	if (identity != vni && !(vni == IDENTITY_REMOTE_NODE && identity_is_remote_node(identity)))
		metrics_count(REASON_VNI_DIFFERS, DIRECTION_INGRESS, skb->len);
	return identity;
}
