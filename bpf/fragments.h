/* Fragments: the parts of a datagram that do not have its ports belong to the flow of the part that has them. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "flow.h"
#include "l4.h"
#include "reasons.h"

struct frag_key {
	__u8 saddr[16]; /* IPv4 takes the first four bytes and leaves the others 0 */
	__u8 daddr[16];
	__u32 id;	/* as on the wire */
	__u16 endpoint; /* at whose link, so that nobody speaks for others */
	__u8 protocol;
	__u8 family; /* 4 or 6 */
};

/* What stands in the first fragment; see struct l4. */
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

static __always_inline void frag_key_make(struct frag_key *key, const struct flow *flow)
{
	__builtin_memcpy(key->saddr, flow->from.addr, sizeof(key->saddr));
	__builtin_memcpy(key->daddr, flow->to.addr, sizeof(key->daddr));
	key->id = flow->datagram;
	key->endpoint = flow->self;
	key->protocol = flow->l4.protocol;
	key->family = flow->family;
}

/* fragment_recall finds what the first fragment said. Functions of their own have room for the key on their stack. */
__attribute__((noinline)) int fragment_recall(struct flow *flow)
{
	struct frag_entry *first;
	struct frag_key key;

	if (!flow)
		return DROP(FILE_FRAGMENTS, REASON_FRAGMENT_UNKNOWN);
	frag_key_make(&key, flow);
	if (!(first = bpf_map_lookup_elem(&frags, &key)))
		return DROP(FILE_FRAGMENTS, REASON_FRAGMENT_UNKNOWN);
	flow->l4.sport = first->sport;
	flow->l4.dport = first->dport;
	flow->l4.role = first->role;
	flow->l4.type = first->type;
	return CONTINUE;
}

/* fragment_remember is for first fragments that were let through; the others are lost without them. */
__attribute__((noinline)) int fragment_remember(const struct flow *flow)
{
	struct frag_entry first = {};
	struct frag_key key;

	if (!flow)
		return 0;
	frag_key_make(&key, flow);
	first.sport = flow->l4.sport;
	first.dport = flow->l4.dport;
	first.role = flow->l4.role;
	first.type = flow->l4.type;
	return bpf_map_update_elem(&frags, &key, &first, BPF_ANY);
}
