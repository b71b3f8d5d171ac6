/* Translated flows of each endpoint, and their limits. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "conntrack.h"
#include "nat_maps.h"

/* Maximum of flows of one endpoint; and of all flows together that have no endpoint, from external clients with backends on other nodes. The flows that the
 * node initiates have a separate limit of the same size. IPv4 is first. */
volatile const __u32 nat_shares[4] = { NAT_FLOWS4 / 2 / 4, NAT_FLOWS4 / 2 / 4 * 3, NAT_FLOWS6 / 2 / 4, NAT_FLOWS6 / 2 / 4 * 3 };

/* Flows that each of them can always have, and the maximum of all flows beyond these guarantees. 256 guarantees are a quarter of the capacity in flows. A
 * sixteenth is left for more of them, for CPUs that count at the same time, and for entries whose flow no longer counts. */
volatile const __u32 nat_guarantees[2] = { NAT_FLOWS4 / 2 / 1024, NAT_FLOWS6 / 2 / 1024 };
volatile const __u32 nat_beyond[2] = { NAT_FLOWS4 / 2 / 16 * 11, NAT_FLOWS6 / 2 / 16 * 11 };

/* The bit that distinguishes the families is an index: a condition would double the paths that the verifier checks. */
#define NAT_FAMILY_BIT 2
_Static_assert((6 & NAT_FAMILY_BIT) > (4 & NAT_FAMILY_BIT), "IPv4 stands first");

static __always_inline __u32 nat_family(__u32 family) { return (family & NAT_FAMILY_BIT) / NAT_FAMILY_BIT; }

static __always_inline __s32 *nat_count_of(struct nat_count *count, __u32 family)
{
	return count ? (void *)count + nat_family(family) * __builtin_offsetof(struct nat_count, ipv6) : NULL;
}

static __always_inline __s32 *nat_total(__u32 slot, __u32 family) { return nat_count_of(bpf_map_lookup_elem(&nat_totals, &slot), family); }

/* nat_count returns the counter of a flow. */
static __always_inline __s32 *nat_count(const struct nat_entry6 *entry, __u32 family)
{
	__u32 endpoint = entry->endpoint; /* helpers of Linux 6.1 take no key from memory that a function was handed */

	if (entry->flags & NAT_NODE)
		return nat_total(NAT_OF_NODE, family);
	return nat_count_of(bpf_map_lookup_elem(&nat_flows, &endpoint), family);
}

static __always_inline __u32 nat_share(const struct nat_entry6 *entry, __u32 family)
{
	return nat_shares[(family & NAT_FAMILY_BIT) | !entry->endpoint];
}

/* nat_from_outside reports whether an external client initiates a flow: one of a service that does not lead back to a pod. */
static __always_inline int nat_from_outside(const struct nat_entry6 *entry) { return (entry->flags & NAT_SERVICE) && entry->reverse != NAT_TO_POD; }

/* nat_limit returns the part of a limit that a flow may use. External clients, which may forge addresses, leave a sixteenth to pods and the node. */
static __always_inline __s32 nat_limit(__u32 limit, int from_outside) { return limit - limit / 16 * from_outside; }

/* Results of nat_room. */
enum nat_room {
	NAT_ROOM_GUARANTEED = 0,
	NAT_ROOM_BEYOND = 1, /* the endpoint has its guaranteed flows already */
	NAT_ROOM_NONE = 2,
};

/* nat_room returns the room for a new flow. There is none if the endpoint has used up its share, or if it has its guarantee and all flows beyond guarantees have
 * what the guarantees of others leave. Each CPU may exceed a limit by one. */
__attribute__((noinline)) int nat_room(const struct nat_entry6 *entry, __u32 family)
{
	__s32 *count, *beyond = nat_total(NAT_BEYOND, family), flows;
	int from_outside;

	if (!entry || !beyond || !(count = nat_count(entry, family)))
		return NAT_ROOM_GUARANTEED;
	from_outside = nat_from_outside(entry);
	flows = *(volatile __s32 *)count;
	if (flows >= nat_limit(nat_share(entry, family), from_outside))
		return NAT_ROOM_NONE;
	if (flows < (__s32)nat_guarantees[nat_family(family)])
		return NAT_ROOM_GUARANTEED;
	return *(volatile __s32 *)beyond >= nat_limit(nat_beyond[nat_family(family)], from_outside) ? NAT_ROOM_NONE : NAT_ROOM_BEYOND;
}

/* nat_wake wakes the agent at three quarters of a limit, and at each sixteenth beyond, so that it deletes expired flows before a new flow is dropped. */
static __always_inline void nat_wake(const struct nat_entry6 *entry, __u32 family, __s32 before, __u32 limit)
{
	__s32 beyond = before - (__s32)(limit - limit / 4);

	if (beyond >= 0 && (__u32)beyond % (limit / 16 + 1) == 0)
		ct_signal(NAT_WAKE_SIGNAL + family, entry->endpoint);
}

/* nat_charge adds one flow. The agent corrects the counters, so they may be slightly wrong for a while, also below 0. */
__attribute__((noinline)) int nat_charge(const struct nat_entry6 *entry, __u32 family)
{
	__s32 *count, *beyond = nat_total(NAT_BEYOND, family), before;

	if (!entry || !beyond || !(count = nat_count(entry, family)))
		return 0;
	before = __sync_fetch_and_add(count, 1);
	nat_wake(entry, family, before, nat_share(entry, family));
	if (before >= (__s32)nat_guarantees[nat_family(family)])
		nat_wake(entry, family, __sync_fetch_and_add(beyond, 1), nat_beyond[nat_family(family)]);
	return 0;
}

/* nat_discharge subtracts one flow. */
static __always_inline void nat_discharge(const struct nat_entry6 *entry, __u32 family)
{
	__s32 *count = nat_count(entry, family), *beyond = nat_total(NAT_BEYOND, family);

	if (count && beyond && __sync_fetch_and_add(count, -1) > (__s32)nat_guarantees[nat_family(family)])
		__sync_fetch_and_add(beyond, -1);
}
