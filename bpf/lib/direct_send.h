/* The look-ups for packets of a pod to a pod of another node that routes connect. Unusual packets are passed to the stack unchanged. */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "direct.h"
#include "endpoint.h"
#include "ipcache.h"
#include "masquerade_maps.h"
#include "nat.h"
#include "path_cache.h"
#include "reasons.h"

/* direct_leads reports whether the destination is a pod of another node to which routes lead, and sets the MTU of the path. */
static __always_inline int direct_leads(struct path_work *work)
{
	struct addr_key to = work->packet.to;
	struct node *node = direct_node(&to);

	if (!node || bpf_map_lookup_elem(&bpf_endpoints, &to))
		return 0;
	work->mtu = node->mtu;
	return 1;
}

/* direct_is_translated reports whether netdev_egress may change the packets of a flow: it masquerades flows that leave the cluster, and translates the replies of
 * services. */
__attribute__((noinline)) int direct_is_translated(const struct path_work *work)
{
	struct nat_work *nat = nat_work();
	struct addr_key to;

	if (!work || !nat || !whole_has_ports(&work->packet))
		return 1;
	to = work->packet.to;
	if (ipcache_identity(&to) == world_identity(work->packet.family))
		return 1;
	nat_key(nat, &work->packet.from, &work->packet.to, work->key.ports[0], work->key.ports[1], work->packet.protocol, NAT_TO_OUTSIDE);
	return nat_load(work->packet.family, NAT_OWN);
}

/* direct_look_up finds the route of a packet: CONTINUE, STEP_TOO_BIG with work->mtu, or PASS when there is none that programs can use. */
__attribute__((noinline)) int direct_look_up(struct __sk_buff *skb, struct path_work *work, struct path *path)
{
	struct bpf_fib_lookup fib = {};
	__u32 ifindex;
	long found;

	if (!work || !path || !direct_forwards() || !direct_leads(work))
		return PASS;
	if (work->mtu && work->packet.segment > work->mtu)
		return STEP_TOO_BIG;
	direct_fib(skb, &fib, &work->packet, &work->packet.from, &work->packet.to);
	fib.sport = work->key.ports[0];
	fib.dport = work->key.ports[1];
	fib.tot_len = work->packet.segment;
	found = bpf_fib_lookup(skb, &fib, sizeof(fib), 0);
	if (found == BPF_FIB_LKUP_RET_FRAG_NEEDED) {
		work->mtu = fib.mtu_result;
		return STEP_TOO_BIG;
	}
	ifindex = fib.ifindex;
	if (!direct_found(found) || !bpf_map_lookup_elem(&netdevs, &ifindex))
		return PASS;
	path->output = fib.ifindex;
	path->hop.nh_family = fib.family;
	__builtin_memcpy(path->hop.ipv6_nh, fib.ipv6_dst, sizeof(path->hop.ipv6_nh));
	path->untranslated = !direct_is_translated(work);
	return CONTINUE;
}
