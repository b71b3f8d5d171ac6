/* Service look-up of an address, and choice of a backend for a client. It needs no packet, so the programs of sockets use it as well. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "clock.h"
#include "endpoint.h"
#include "service_maps.h"

/* The current choice: first the fields of the request, then the fields of the result. */
struct choice {
	struct service_key key; /* service_find fills in the scope */
	__u32 internal;		/* 1: the client is a pod or a process of this node */
	__u32 hash;		/* of the packet's addresses and ports (service_hash), for external clients of a service with Maglev */
	struct affinity_key client; /* service_choose fills in the service; kind 0 keeps no backend */
	struct service service;
	__u32 id; /* of the backend */
	struct backend backend;
};

#define TRIES 2 /* reads of an entry that changes meanwhile, and choices of a backend that may be missing */

static __always_inline __u64 service_mix(__u64 sum, __u64 word)
{
	sum = (sum ^ word) * 0x9e3779b97f4a7c15ULL;
	return sum ^ sum >> 29;
}

/* service_hash returns the same number for the same addresses and ports on every node, so that Maglev chooses the same backend on each. */
static __always_inline __u32 service_hash(const struct addr_key *from, const struct addr_key *to, __be16 sport, __be16 dport, __u8 protocol)
{
	__u64 from64[2], to64[2], sum;

	__builtin_memcpy(from64, from->addr, sizeof(from64));
	__builtin_memcpy(to64, to->addr, sizeof(to64));
	sum = service_mix((__u64)sport << 32 | (__u64)dport << 16 | protocol, from64[0]);
	sum = service_mix(sum, from64[1]);
	sum = service_mix(sum, to64[0]);
	return service_mix(sum, to64[1]) >> 32;
}

/* service_copy reads an entry as a whole: the memory of a replaced entry may be reused at once. */
static __always_inline int service_copy(const struct service_key *key, struct service *copy)
{
	struct service *found;

#pragma unroll
	for (int i = 0; i < TRIES; i++) {
		found = bpf_map_lookup_elem(&services, key);
		if (!found)
			return 0;
		*copy = *(volatile struct service *)found;
		if (bpf_map_lookup_elem(&services, key) == found)
			return 1;
	}
	return 0;
}

/* service_find finds the service of an address, a port and a protocol for this client, and reports whether there is one. It is a separate function, like others
 * here, because keys need stack space, and because the verifier checks it once. */
__attribute__((noinline)) int service_find(struct choice *choice)
{
	struct service service = {};
	struct service_key key;

	if (!choice)
		return 0;
	key = choice->key;
	key.scope = SCOPE_EXTERNAL;
	if (!service_copy(&key, &service))
		return 0;
	if ((service.flags & SERVICE_TWO_SCOPES) && choice->internal) {
		key.scope = SCOPE_INTERNAL;
		if (!service_copy(&key, &service))
			return 0;
	}
	choice->key.scope = key.scope;
	choice->service = service;
	return 1;
}

/* service_admits reports whether an external client may use a service. */
static __always_inline int service_admits(const struct service *service, const struct addr_key *client)
{
	struct source_range_key key = { .prefixlen = SOURCE_RANGE_FULL, .service = service->id, .family = client->family };

	if (!(service->flags & SERVICE_OUTSIDE))
		return 0;
	if (!(service->flags & SERVICE_RANGES))
		return 1;
	__builtin_memcpy(key.addr, client->addr, sizeof(key.addr));
	if (!(service->flags & SERVICE_RANGES_DENY))
		return !!bpf_map_lookup_elem(&source_ranges, &key);
	key.family |= SOURCE_RANGE_DENY;
	return !bpf_map_lookup_elem(&source_ranges, &key);
}

static __always_inline int backend_copy(__u32 id, struct backend *copy)
{
	struct backend *found;

#pragma unroll
	for (int i = 0; i < TRIES; i++) {
		found = bpf_map_lookup_elem(&backends, &id);
		if (!found)
			return 0;
		*copy = *(volatile struct backend *)found;
		if (bpf_map_lookup_elem(&backends, &id) == found)
			return 1;
	}
	return 0;
}

/* affinity_recall returns the previous backend of a client, if it is still one of the service's for its scope, otherwise 0. */
static __always_inline __u32 affinity_recall(const struct affinity_key *key, __u8 scope, __u32 seconds)
{
	struct affinity_entry *entry = bpf_map_lookup_elem(&affinity, key);
	__u32 now = ct_now(), ticks = ((__u64)seconds * 1000000000) >> CT_TICK_SHIFT;
	struct affinity_member member = { .service = key->service };
	__u32 *scopes;

	if (!entry || now - entry->used > ticks)
		return 0;
	member.backend = *(volatile __u32 *)&entry->backend;
	scopes = bpf_map_lookup_elem(&affinity_members, &member);
	if (!scopes || !(*scopes >> scope & 1))
		return 0;
	if (entry->used != now)
		entry->used = now;
	return member.backend;
}

/* service_take sets the backend of the choice. */
__attribute__((noinline)) int service_take(struct choice *choice, __u32 id)
{
	if (!choice || !id || !backend_copy(id, &choice->backend))
		return 0;
	choice->id = id;
	return 1;
}

/* service_try sets the backend of one try, and reports whether it exists. */
__attribute__((noinline)) int service_try(struct choice *choice, __u32 random, __u32 try)
{
	const struct service *service;
	__u32 *id = NULL, slot;

	if (!choice || !choice->service.count)
		return 0;
	service = &choice->service;
	if ((service->flags & SERVICE_MAGLEV) && service->maglev_size && !choice->internal && !try) {
		slot = service->maglev + choice->hash % service->maglev_size;
		id = bpf_map_lookup_elem(&maglev, &slot);
	}
	if (!id || !*id) {
		slot = service->first + (random + try) % service->count;
		id = bpf_map_lookup_elem(&service_slots, &slot);
	}
	return id && service_take(choice, *id);
}

/* service_choose chooses a backend of the service in the choice, and reports whether there is one. */
__attribute__((noinline)) int service_choose(struct choice *choice)
{
	__u32 random = bpf_get_prandom_u32(), seconds;
	struct affinity_entry chosen = {};
	struct affinity_key client;
	int keeps, found = 0;

	if (!choice || !choice->service.count)
		return 0;
	client = choice->client;
	client.service = choice->service.id;
	seconds = choice->service.affinity;
	keeps = (choice->service.flags & SERVICE_AFFINITY) && client.kind;
	if (keeps && service_take(choice, affinity_recall(&client, choice->key.scope, seconds)))
		return 1;
	for (int i = 0; i < TRIES && !found; i++)
		found = service_try(choice, random, i);
	if (found && keeps) {
		chosen.backend = choice->id;
		chosen.used = ct_now();
		bpf_map_update_elem(&affinity, &client, &chosen, BPF_ANY);
	}
	return found;
}
