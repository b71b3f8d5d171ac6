/* The identities of the cluster that the policies know. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#define IDENTITY_CLUSTER_MIN 256
#define IDENTITY_CLUSTER_MAX 65535

/* Bit n % 64 of word n / 64 is for identity n: all policies in use have the entries that they need about it. The agent sets a bit after it wrote these entries,
 * and clears it before it removes them. So a policy that denies an identity is never evaluated for it too early. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, (IDENTITY_CLUSTER_MAX + 1) / 64);
	__type(key, __u32);
	__type(value, __u64);
} known_identities SEC(".maps");

/* The classes of an identity of the cluster, to which entries of POLICY_CLASS apply; 0: none. The agent writes them before any peer may be known by the
 * identity. It clears them when no peer is known by it, or when policies have entries about the identity itself, so that no deny is missing. */
struct identity_classes {
	__u32 cluster;	 /* all pods of its cluster */
	__u32 namespace; /* the pods of its namespace */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, IDENTITY_CLUSTER_MAX + 1);
	__type(key, __u32);
	__type(value, struct identity_classes);
} identity_classes SEC(".maps");

/* identity_is_known reports whether a peer may be known by an identity that ipcache does not name: the policies know it, and it means the same labels in the
 * whole cluster. */
static __always_inline int identity_is_known(__u32 identity)
{
	__u32 word = identity / 64;
	__u64 *bits;

	if (identity < IDENTITY_CLUSTER_MIN || identity > IDENTITY_CLUSTER_MAX)
		return 0;
	bits = bpf_map_lookup_elem(&known_identities, &word);
	return bits && (*bits >> (identity % 64) & 1);
}
