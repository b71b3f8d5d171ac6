/* The endpoints of this node: the properties of each, and the look-ups by its link or its address. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in6.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "reasons.h"

#define ENDPOINTS_MAX 4096

#define ENDPOINT_IPV4 1 /* flags of endpoint_facts */
#define ENDPOINT_IPV6 2
#define ADDRESS_HOST 1	/* flag of endpoint_ref: an address of the node itself */

/* One endpoint. A slot whose ifindex is 0 is free. */
struct endpoint_facts {
	__u32 ifindex;		/* host end of the pod's link */
	__u32 identity;
	/* Policy ids (0 drops, 1 allows all), each with the shape of the policy: the classes of keys that it has (policy.h). A pair is read at once, so it is
	 * aligned to eight bytes. */
	__u32 policy_ingress;
	__u32 shape_ingress;
	__u32 policy_egress;
	__u32 shape_egress;
	/* The same, including the policies in audit mode; id 0 when there are none. */
	__u32 audit_ingress;
	__u32 audit_shape_ingress;
	__u32 audit_egress;
	__u32 audit_shape_egress;
	__u32 policy_revision;	/* increases when the verdict of the policies on established flows may have changed */
	__u32 revision;		/* increases with each write of the slot, also over deletion, and never repeats */
	__u16 id;
	__u16 flags;
	__u8 pod_mac[ETH_ALEN];
	__u8 host_mac[ETH_ALEN];
	__be32 ipv4;
	__be32 gateway_ipv4;
	__u8 ipv6[16];
	__u8 gateway_ipv6[16];
};

_Static_assert(__builtin_offsetof(struct endpoint_facts, policy_ingress) % 8 == 0, "read at once");

/* An address of either family; an IPv4 address uses the first four bytes, the others are 0. */
struct addr_key {
	__u8 addr[16] __attribute__((aligned(4)));
	__u8 family; /* 4 or 6 */
	__u8 pad[3];
};

struct endpoint_ref {
	__u32 id;
	__u32 flags;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ENDPOINTS_MAX);
	__type(key, __u32); /* local endpoint id */
	__type(value, struct endpoint_facts);
} endpoint_facts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, ENDPOINTS_MAX);
	__type(key, __u32);   /* ifindex of the host end */
	__type(value, __u32); /* local endpoint id */
} bpf_links SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384); /* two addresses for each endpoint, and as many of the node itself */
	__type(key, struct addr_key);
	__type(value, struct endpoint_ref);
} bpf_endpoints SEC(".maps");

/* endpoint_by_id returns the endpoint, or NULL when the slot is free. */
static __always_inline struct endpoint_facts *endpoint_by_id(__u32 id)
{
	struct endpoint_facts *facts = bpf_map_lookup_elem(&endpoint_facts, &id);

	return facts && facts->ifindex ? facts : NULL;
}

/* endpoint_by_link returns the endpoint behind a host end. The facts must name the same link: while one endpoint replaces another, a packet must find either
 * none or the correct one. */
static __always_inline struct endpoint_facts *endpoint_by_link(__u32 ifindex)
{
	__u32 *id = bpf_map_lookup_elem(&bpf_links, &ifindex);
	struct endpoint_facts *facts;

	if (!id)
		return NULL;
	facts = endpoint_by_id(*id);
	return facts && facts->ifindex == ifindex ? facts : NULL;
}

static __always_inline struct addr_key addr_key_ipv4(__be32 addr)
{
	struct addr_key key = { .family = 4 };

	__builtin_memcpy(key.addr, &addr, sizeof(addr));
	return key;
}

static __always_inline struct addr_key addr_key_ipv6(const struct in6_addr *addr)
{
	struct addr_key key = { .family = 6 };

	__builtin_memcpy(key.addr, addr, sizeof(*addr));
	return key;
}

static __always_inline int endpoint_has_ipv4(const struct endpoint_facts *facts, __be32 addr)
{
	return (facts->flags & ENDPOINT_IPV4) && facts->ipv4 == addr;
}
