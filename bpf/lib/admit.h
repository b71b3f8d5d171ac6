/* Packets that other nodes send, without the tunnel, to pods and addresses of this node. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "endpoint.h"
#include "flow.h"
#include "ipcache.h"
#include "mark.h"
#include "nat.h"
#include "nodes.h"
#include "reasons.h"

#define ACCEPTS_ROUTED 2 /* from nodes with NODE_ROUTED */

/* 1: all nodes may send to pods without the tunnel, whatever mode this node uses; ACCEPTS_ROUTED: only some nodes may. */
volatile const __u32 direct_accepted = 0;

/* admit_from reports whether a node may send to pods without the tunnel. */
static __always_inline int admit_from(__u32 id)
{
	struct node *node;

	if (direct_accepted != ACCEPTS_ROUTED)
		return 1;
	return (node = bpf_map_lookup_elem(&nodes, &id)) && (node->flags & NODE_ROUTED);
}

/* admit sets the mark on a packet that netdev_ingress has read and passes to the stack, if it is from another node or one of its pods and for this node or one
 * of its pods. The route to its source may lead into waggle_host, as the routes to pods of this node do. The nftables rules drop packets of other devices with
 * such a source, unless they have the mark. */
__attribute__((noinline)) int admit(struct __sk_buff *skb)
{
	struct flow *flow = flow_current();
	struct ipcache_entry *entry, *range;
	struct addr_key from, to;
	struct lpm_key key;
	__u32 id;

	if (!direct_accepted || !flow || !flow->family) /* of a device that does not lead out, and for another host, nothing was read */
		return 0;
	from = flow->from; /* helpers of Linux 6.1 take no key from the flow */
	to = flow->to;
	if (!bpf_map_lookup_elem(&bpf_endpoints, &to) || bpf_map_lookup_elem(&bpf_endpoints, &from))
		return 0;
	entry = bpf_map_lookup_elem(&ipcache, &from);
	id = entry ? entry->node : NODE_THIS;
	if (id == NODE_THIS) { /* the node of its range, as ipcache_node has it */
		lpm_key_make(&key, &from);
		range = bpf_map_lookup_elem(&ipcache_prefixes, &key);
		if (!range || !range->node)
			return 0;
		entry = entry ?: range;
		id = range->node;
	}
	if (!admit_from(id))
		return 0;
	skb->mark = mark_of(entry->identity);
	return 0;
}

/* admit_destination reports whether the destination in the entry of the work is on another node that may be reached without the tunnel. */
__attribute__((noinline)) int admit_destination(__u32 family)
{
	struct nat_work *work = nat_work();
	struct addr_key to = {};

	if (!direct_accepted || !work)
		return 0;
	to.family = family;
	__builtin_memcpy(to.addr, work->entry.daddr, sizeof(to.addr));
	return !!ipcache_node(&to);
}
