/* Fragments: the parts of a datagram without its ports belong to the flow of the part that has them. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "clock.h"
#include "endpoint.h"
#include "flow.h"
#include "l4.h"
#include "rate.h"
#include "reasons.h"

struct frag_key {
	__u8 saddr[16]; /* an IPv4 address uses the first four bytes, the others are 0 */
	__u8 daddr[16];
	__u32 id;	/* as on the wire */
	__u16 endpoint; /* at whose link the fragment arrived, so that an endpoint cannot spoof fragments of others */
	__u8 protocol;
	__u8 family; /* 4 or 6 */
};

/* The ports of the first fragment; see struct l4. */
struct frag_entry {
	__be16 sport;
	__be16 dport;
	__u8 role;
	__u8 type;
	__u8 pad[2];
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct frag_key);
	__type(value, struct frag_entry);
} frags SEC(".maps");

/* First fragments beyond the rate of their endpoint. So an endpoint that sends many evicts no entry of the others. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct frag_key);
	__type(value, struct frag_entry);
} frags_burst SEC(".maps");

#define FRAG_RATE 64 /* first fragments of an endpoint in a tick in frags: fragments of a datagram arrive within a few ticks */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ENDPOINTS_MAX + 1);
	__type(key, __u32); /* endpoint of frag_key; ENDPOINTS_MAX for sent packets of the node */
	__type(value, struct rate);
} frag_rates SEC(".maps");

static __always_inline void frag_key_make(struct frag_key *key, const struct flow *flow)
{
	__builtin_memcpy(key->saddr, flow->from.addr, sizeof(key->saddr));
	__builtin_memcpy(key->daddr, flow->to.addr, sizeof(key->daddr));
	key->id = flow->datagram;
	key->endpoint = flow->self;
	key->protocol = flow->l4.protocol;
	key->family = flow->family;
}

/* fragment_recall reads the ports of the first fragment. It is a separate function, because the key needs stack space. */
__attribute__((noinline)) int fragment_recall(struct flow *flow)
{
	struct frag_entry *first;
	struct frag_key key;

	if (!flow)
		return DROP(FILE_FRAGMENTS, REASON_FRAGMENT_UNKNOWN);
	frag_key_make(&key, flow);
	if (!(first = bpf_map_lookup_elem(&frags, &key)) && !(first = bpf_map_lookup_elem(&frags_burst, &key)))
		return DROP(FILE_FRAGMENTS, REASON_FRAGMENT_UNKNOWN);
	flow->l4.sport = first->sport;
	flow->l4.dport = first->dport;
	flow->l4.role = first->role;
	flow->l4.type = first->type;
	return CONTINUE;
}

/* fragment_remember stores the ports of a first fragment that passed. Without them the later fragments are dropped. */
__attribute__((noinline)) int fragment_remember(const struct flow *flow)
{
	struct frag_entry first = {};
	struct frag_key key;
	__u32 slot;

	if (!flow)
		return 0;
	frag_key_make(&key, flow);
	first.sport = flow->l4.sport;
	first.dport = flow->l4.dport;
	first.role = flow->l4.role;
	first.type = flow->l4.type;
	slot = flow->self < ENDPOINTS_MAX ? flow->self : ENDPOINTS_MAX;
	if (!rate_exceeded(bpf_map_lookup_elem(&frag_rates, &slot), ct_now(), FRAG_RATE))
		return bpf_map_update_elem(&frags, &key, &first, BPF_ANY);
	bpf_map_delete_elem(&frags, &key); /* of an earlier datagram with this id, which fragment_recall would prefer */
	return bpf_map_update_elem(&frags_burst, &key, &first, BPF_ANY);
}
