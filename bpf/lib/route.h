/* Sending packets out of a device at once, past the node's stack, which accepts no packet from outside with an address of the node as its source. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "flow.h"
#include "ipv4.h"
#include "ipv6.h"
#include "nat.h"
#include "reasons.h"

#define FAMILY_IPV4 2 /* AF_INET */
#define FAMILY_IPV6 10

/* The route of a packet, looked up before the packet is changed. */
struct route {
	__u32 ifindex;
	__u32 mtu;
	struct bpf_redir_neigh hop;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct route);
} leaves SEC(".maps");

static __always_inline struct route *route_work(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&leaves, &zero);
}

/* route_length returns the length of the packet without a link header, or of the longest packet after segmentation. */
static __always_inline __u32 route_length(struct __sk_buff *skb, const struct flow *flow)
{
	__u32 header = 8, length;
	__u8 offset;

	if (!skb->gso_size)
		return flow->end - link_header;
	if (flow->l4.protocol == IPPROTO_TCP && !bpf_skb_load_bytes(skb, flow->at + 12, &offset, sizeof(offset)))
		header = (offset >> 4) * 4;
	length = flow->at - link_header + header + skb->gso_size;
	return length < 65535 ? length : 65535;
}

/* route_lookup looks up the route of the translated packet. It is a separate function, because the parameters need stack space. */
__attribute__((noinline)) int route_lookup(struct __sk_buff *skb, __u32 family, __u32 length)
{
	struct nat_work *work = nat_work();
	struct route *route = route_work();
	struct bpf_fib_lookup fib = {};
	long found;

	if (!work || !route)
		return DROP(FILE_ROUTE, REASON_NO_ROUTE);
	fib.l4_protocol = work->key.protocol;
	fib.sport = work->entry.sport;
	fib.dport = work->entry.dport;
	fib.tot_len = length;
	fib.ifindex = skb->ifindex;
	if (family == 6) {
		fib.family = FAMILY_IPV6;
		__builtin_memcpy(fib.ipv6_src, work->entry.saddr, sizeof(fib.ipv6_src));
		__builtin_memcpy(fib.ipv6_dst, work->entry.daddr, sizeof(fib.ipv6_dst));
	} else {
		fib.family = FAMILY_IPV4;
		fib.ipv4_src = *(__be32 *)work->entry.saddr;
		fib.ipv4_dst = *(__be32 *)work->entry.daddr;
	}
	found = bpf_fib_lookup(skb, &fib, sizeof(fib), 0);
	route->mtu = fib.mtu_result;
	if (found == BPF_FIB_LKUP_RET_FRAG_NEEDED)
		return STEP_TOO_BIG;
	/* If the neighbour's link address is unknown, the kernel resolves it when the packet is sent. */
	if (found != BPF_FIB_LKUP_RET_SUCCESS && found != BPF_FIB_LKUP_RET_NO_NEIGH)
		return DROP(FILE_ROUTE, REASON_NO_ROUTE);
	route->ifindex = fib.ifindex;
	route->hop.nh_family = fib.family;
	__builtin_memcpy(route->hop.ipv6_nh, fib.ipv6_dst, sizeof(route->hop.ipv6_nh));
	return CONTINUE;
}

/* route_send sends a translated packet on the route that was found. */
__attribute__((noinline)) int route_send(struct __sk_buff *skb, __u32 family)
{
	struct route *route = route_work();
	verdict v;

	if (!route)
		return DROP(FILE_ROUTE, REASON_NO_ROUTE);
	v = family == 6 ? ipv6_hop(skb) : ipv4_hop(skb);
	if (v != CONTINUE)
		return v;
	/* bpf_redirect_neigh removes a link header. */
	if (!link_header && bpf_skb_change_head(skb, ETH_HLEN, 0))
		return DROP(FILE_ROUTE, REASON_WRITE);
	return bpf_redirect_neigh(route->ifindex, &route->hop, sizeof(route->hop), 0) == REDIRECTED ? REDIRECTED :
													 DROP(FILE_ROUTE, REASON_WRITE);
}
