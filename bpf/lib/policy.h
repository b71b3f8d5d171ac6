/* Policy: the verdict of the entries of a policy id on a peer, a protocol and a port. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "identities.h"
#include "ipcache.h"
#include "reasons.h"

#define POLICY_DROP_ALL 0
#define POLICY_ALLOW_ALL 1

/* The peers of an entry. */
enum policy_kind {
	POLICY_ANY = 0,		 /* all peers; identity 0 */
	POLICY_IDENTITY = 1,	 /* peers with the identity */
	POLICY_CIDR = 2,	 /* peers with an address in the named CIDR, whatever their identity */
	POLICY_CIDR_OUTSIDE = 3, /* the same, but only peers outside the cluster */
	POLICY_CLASS = 4,	 /* peers with an identity of the class: see identity_classes */
	POLICY_KINDS = 5,
};

/* The protocols and ports of an entry. */
enum policy_level {
	POLICY_ALL = 0,	     /* all protocols and ports: protocol 0, port 0, port_bits 0 */
	POLICY_PROTOCOL = 1, /* one protocol, all ports: port 0, port_bits 0 */
	POLICY_PORT = 2,     /* one protocol, one port: port_bits 16. The port of ICMP is its type. */
	POLICY_LEVELS = 3,
};

/* The shape of a policy id is the set of classes of keys that it has. Bit kind * POLICY_LEVELS + level is for the hash, bit SHAPE_RANGES + kind for
 * policy_ranges; of POLICY_CLASS, bit SHAPE_CLASS + level and bit SHAPE_CLASS + POLICY_LEVELS. SHAPE_LOCALHOST: the local host is allowed, regardless of the
 * entries. */
#define SHAPE_RANGES 12
#define SHAPE_CLASS 19
#define SHAPE_LOCALHOST (1U << 16)
/* SHAPE_NESTED: entries about a CIDR also apply to all CIDRs inside it, down to one with an entry of POLICY_STOP. Without the bit they apply to that CIDR
 * alone, and the policy has entries about each CIDR inside. SHAPE_STOPS: there are entries of POLICY_STOP. */
#define SHAPE_NESTED (1U << 17)
#define SHAPE_STOPS (1U << 18)

/* Protocol of an entry about a CIDR that means: entries about the CIDRs around this one do not apply to it. No packet that is evaluated has this protocol
 * number, which is reserved, and the entry denies. */
#define POLICY_STOP 255

struct policy_key {
	__u32 policy;
	__u32 identity; /* of an endpoint, of a named CIDR or of a class, by kind */
	__u8 kind;
	__u8 protocol;
	__be16 port;
	__u8 port_bits;
	__u8 pad[3];
};

struct policy_entry {
	__u32 rule; /* cookie of the rule, for reports; 0 for none */
	__u8 deny;
	__u8 pad[3];
};

/* prefixlen counts all bits up to the protocol, and those bits of the port that all ports of the range share. */
struct policy_range_key {
	__u32 prefixlen;
	__u32 policy;
	__u32 identity;
	__u8 kind;
	__u8 protocol;
	__be16 port;
};

#define POLICY_RANGE_STATIC 80
#define POLICY_RANGE_FULL (POLICY_RANGE_STATIC + 16)

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, struct policy_key);
	__type(value, struct policy_entry);
} policy SEC(".maps");

/* The ranges of one policy, kind, identity and protocol do not overlap, so the longest match is the only one. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct policy_range_key);
	__type(value, struct policy_entry);
} policy_ranges SEC(".maps");

#define SHAPE_KIND(kind) (7U << ((kind) * POLICY_LEVELS) | 1U << (SHAPE_RANGES + (kind))) /* not for POLICY_CLASS */
#define SHAPE_CIDRS (SHAPE_KIND(POLICY_CIDR) | SHAPE_KIND(POLICY_CIDR_OUTSIDE))
#define SHAPE_CLASSES (15U << SHAPE_CLASS)

/* A bit in the result of shape_of_kind: level, or POLICY_LEVELS for policy_ranges. */
#define KIND_HAS(level) (1U << (level))

/* shape_of_kind returns the bits of a shape about one kind. */
static __always_inline __u32 shape_of_kind(__u32 shape, enum policy_kind kind)
{
	if (kind == POLICY_CLASS)
		return shape >> SHAPE_CLASS & 15;
	return (shape >> (kind * POLICY_LEVELS) & 7) | (shape >> (SHAPE_RANGES + kind) & 1) << POLICY_LEVELS;
}

/* How specific the deciding entry is; Cilium's numbers. L3 is a peer, L4 a port with its protocol. */
enum policy_match {
	MATCH_NONE = 0,
	MATCH_L3_ONLY = 1,
	MATCH_L3_L4 = 2,
	MATCH_L4_ONLY = 3,
	MATCH_ALL = 4,
	MATCH_L3_PROTOCOL = 5,
	MATCH_PROTOCOL = 6,
};

struct policy_lookup {
	__u32 policy;
	__u32 shape;
	__u32 identity; /* of the peer */
	struct addr_key peer;
	__be16 port;
	__u8 protocol;
	__u8 outside; /* the peer is not in the cluster */
	enum policy_match match; /* result: how specific the deciding entry is */
	verdict found;		 /* of the entries about CIDRs */
};

/* policy_combine combines an entry with the result so far. A deny always wins; the first of several allows is reported. */
static __always_inline verdict policy_combine(const struct policy_entry *entry, struct policy_lookup *q, enum policy_match match)
{
	if (!entry)
		return CONTINUE;
	if (entry->deny) {
		q->match = match;
		return DROP(FILE_POLICY, REASON_POLICY_DENY);
	}
	if (q->match == MATCH_NONE)
		q->match = match;
	return CONTINUE;
}

/* policy_probe looks up the entries of one kind. It is a separate function, so that the verifier checks it once. */
__attribute__((noinline)) int policy_probe(struct policy_lookup *q, enum policy_kind kind, __u32 identity)
{
	const int any = kind == POLICY_ANY;
	struct policy_key key = { .identity = identity, .kind = kind };
	__u32 has;
	verdict v;

	if (!q || kind >= POLICY_KINDS)
		return DROP(FILE_POLICY, REASON_POLICY);
	has = shape_of_kind(q->shape, kind);
	key.policy = q->policy;
	if (has & KIND_HAS(POLICY_ALL)) {
		v = policy_combine(bpf_map_lookup_elem(&policy, &key), q, any ? MATCH_ALL : MATCH_L3_ONLY);
		if (v != CONTINUE)
			return v;
	}
	key.protocol = q->protocol;
	if (has & KIND_HAS(POLICY_PROTOCOL)) {
		v = policy_combine(bpf_map_lookup_elem(&policy, &key), q, any ? MATCH_PROTOCOL : MATCH_L3_PROTOCOL);
		if (v != CONTINUE)
			return v;
	}
	if (has & KIND_HAS(POLICY_PORT)) {
		key.port = q->port;
		key.port_bits = 16;
		v = policy_combine(bpf_map_lookup_elem(&policy, &key), q, any ? MATCH_L4_ONLY : MATCH_L3_L4);
		if (v != CONTINUE)
			return v;
	}
	if (has & KIND_HAS(POLICY_LEVELS)) {
		struct policy_range_key range = { .prefixlen = POLICY_RANGE_FULL,
						  .policy = q->policy,
						  .identity = identity,
						  .kind = kind,
						  .protocol = q->protocol,
						  .port = q->port };

		return policy_combine(bpf_map_lookup_elem(&policy_ranges, &range), q, any ? MATCH_L4_ONLY : MATCH_L3_L4);
	}
	return CONTINUE;
}

/* policy_stops reports whether entries about wider CIDRs do not apply to one. It is a separate function, because of its stack. */
__attribute__((noinline)) int policy_stops(const struct policy_lookup *q, __u32 identity)
{
	struct policy_key key = { .identity = identity, .kind = POLICY_CIDR, .protocol = POLICY_STOP };

	if (!q)
		return 1;
	key.policy = q->policy;
	return bpf_map_lookup_elem(&policy, &key) != NULL;
}

/* A walk from the longest CIDR around an address to the widest. */
struct cidr_walk {
	struct lpm_key key;
	struct policy_lookup *lookup;
};

/* policy_step looks up the entries about one CIDR. It returns 1 to end the walk. */
static long policy_step(__u32 step, void *context)
{
	struct cidr_walk *w = context;
	struct policy_lookup *q = w->lookup;
	const struct cidr *cidr;
	__u32 identity, bits;

	(void)step;
	cidr = bpf_map_lookup_elem(&cidrs, &w->key);
	if (!cidr || !q)
		return 1;
	identity = cidr->identity;
	bits = cidr->bits;
	if ((q->shape & SHAPE_KIND(POLICY_CIDR)) && (q->found = policy_probe(q, POLICY_CIDR, identity)) != CONTINUE)
		return 1;
	if ((q->shape & SHAPE_KIND(POLICY_CIDR_OUTSIDE)) && q->outside &&
	    (q->found = policy_probe(q, POLICY_CIDR_OUTSIDE, identity)) != CONTINUE)
		return 1;
	if (!(q->shape & SHAPE_NESTED) || bits <= LPM_STATIC || bits > w->key.prefixlen)
		return 1;
	if ((q->shape & SHAPE_STOPS) && policy_stops(q, identity))
		return 1;
	w->key.prefixlen = bits - 1;
	return 0;
}

/* policy_walk looks up the entries about the CIDRs around the address of the peer: one allow suffices, unless an entry denies. */
static __always_inline verdict policy_walk(struct policy_lookup *q)
{
	struct cidr_walk w = { .lookup = q };

	lpm_key_make(&w.key, &q->peer);
	q->found = CONTINUE;
	bpf_loop(128 + 1, policy_step, &w, 0);
	return q->found;
}

/* policy_classes looks up the entries about the classes of the peer's identity. It is a separate function, because of its stack. */
__attribute__((noinline)) int policy_classes(struct policy_lookup *q)
{
	struct identity_classes *classes;
	__u32 identity, namespace;
	verdict v;

	if (!q)
		return DROP(FILE_POLICY, REASON_POLICY);
	identity = q->identity;
	classes = bpf_map_lookup_elem(&identity_classes, &identity); /* none of an identity beyond IDENTITY_CLUSTER_MAX */
	if (!classes || !classes->cluster)
		return CONTINUE;
	namespace = classes->namespace;
	v = policy_probe(q, POLICY_CLASS, classes->cluster);
	return v != CONTINUE ? v : policy_probe(q, POLICY_CLASS, namespace);
}

/* policy_evaluate evaluates a peer by a policy: some entry must allow it, and none deny it. Only the classes of the shape are looked up. A peer with
 * an unknown identity may be any peer, so only a policy without rules allows it. It is a separate function, so that the verifier checks it
 * once. */
__attribute__((noinline)) int policy_evaluate(struct policy_lookup *q)
{
	verdict v;

	if (!q)
		return DROP(FILE_POLICY, REASON_POLICY);
	q->match = MATCH_NONE;
	if (q->policy == POLICY_ALLOW_ALL) {
		q->match = MATCH_ALL;
		return CONTINUE;
	}
	if (q->policy == POLICY_DROP_ALL)
		return DROP(FILE_POLICY, REASON_POLICY);
	if (!q->identity)
		return DROP(FILE_POLICY, REASON_UNKNOWN_IDENTITY);
	if ((q->shape & SHAPE_LOCALHOST) && q->identity == IDENTITY_HOST) {
		q->match = MATCH_L3_ONLY;
		return CONTINUE;
	}
	if ((q->shape & SHAPE_KIND(POLICY_ANY)) && (v = policy_probe(q, POLICY_ANY, 0)) != CONTINUE)
		return v;
	if ((q->shape & SHAPE_KIND(POLICY_IDENTITY)) && (v = policy_probe(q, POLICY_IDENTITY, q->identity)) != CONTINUE)
		return v;
	if ((q->shape & SHAPE_CLASSES) && (v = policy_classes(q)) != CONTINUE)
		return v;
	if ((q->shape & SHAPE_CIDRS) && (v = policy_walk(q)) != CONTINUE)
		return v;
	return q->match == MATCH_NONE ? DROP(FILE_POLICY, REASON_POLICY) : CONTINUE;
}
