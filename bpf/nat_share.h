/* How many translated flows each endpoint has, and how many it may have. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "conntrack.h"
#include "nat_maps.h"

/* How many flows one endpoint may have, and how many all those together may be that are of no endpoint: clients from outside whose
 * backends are elsewhere, and what the node itself opens. IPv4 stands first. */
volatile const __u32 nat_shares[4] = { NAT_FLOWS4 / 2 / 4, NAT_FLOWS4 / 2 / 4 * 3, NAT_FLOWS6 / 2 / 4, NAT_FLOWS6 / 2 / 4 * 3 };

/* The bit by which the families differ makes an index: a condition would double the ways that the verifier goes. */
#define NAT_FAMILY_BIT 2
_Static_assert((6 & NAT_FAMILY_BIT) > (4 & NAT_FAMILY_BIT), "IPv4 stands first");

/* nat_count is the number that a flow counts for. */
static __always_inline __s32 *nat_count(const struct nat_entry6 *entry, __u32 family)
{
	struct nat_count *count = bpf_map_lookup_elem(&nat_flows, &entry->endpoint);

	if (!count)
		return NULL;
	return (void *)count + (family & NAT_FAMILY_BIT) / 2 * __builtin_offsetof(struct nat_count, ipv6);
}

static __always_inline __u32 nat_share(const struct nat_entry6 *entry, __u32 family)
{
	return nat_shares[(family & NAT_FAMILY_BIT) | !entry->endpoint];
}

/* nat_spent tells whether there may be no flow more. CPUs may go beyond it by one each. */
static __always_inline int nat_spent(const struct nat_entry6 *entry, __u32 family)
{
	__s32 *count = nat_count(entry, family);

	return count && *(volatile __s32 *)count >= (__s32)nat_share(entry, family);
}

/* nat_charge counts a flow more. The agent corrects the number, so it may be off by some for a while, also below 0. It is woken when
 * three quarters are in use, and with each sixteenth beyond: what is over shall go before anybody is refused. */
static __always_inline void nat_charge(const struct nat_entry6 *entry, __u32 family)
{
	__s32 *count = nat_count(entry, family);
	__u32 share = nat_share(entry, family);
	__s32 beyond;

	if (!count)
		return;
	beyond = __sync_fetch_and_add(count, 1) - (__s32)(share - share / 4);
	if (beyond >= 0 && (__u32)beyond % (share / 16 + 1) == 0)
		ct_signal(NAT_WAKE_SIGNAL + family, entry->endpoint);
}

/* nat_discharge counts a flow less. */
static __always_inline void nat_discharge(const struct nat_entry6 *entry, __u32 family)
{
	__s32 *count = nat_count(entry, family);

	if (count)
		__sync_fetch_and_add(count, -1);
}
