/* The identity behind an address that no endpoint of this node has, or that a packet merely claims as its source. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "endpoint.h"

/* Identities of addresses that no entry covers, by family. */
volatile const __u32 world_ipv4 = 2;
volatile const __u32 world_ipv6 = 2;

/* UDP port of the tunnel between nodes, in host byte order; 0 when routes connect the pods of different nodes. */
volatile const __u32 tunnel_port = 0;

#define IDENTITY_UNKNOWN 0
#define IDENTITY_HOST 1
#define IDENTITY_WORLD 2
#define IDENTITY_REMOTE_NODE 6
#define IDENTITY_API_SERVER 7
#define IDENTITY_WORLD_IPV4 9
#define IDENTITY_WORLD_IPV6 10
#define IDENTITY_SCOPE 0xff000000
#define IDENTITY_SCOPE_REMOTE_NODE 0x02000000

struct ipcache_entry {
	__u32 identity;
	__u16 node; /* id of the node that has the address; 0 when no other node has it */
	__u8 flags; /* none are defined: 0 */
	__u8 pad;
};

struct lpm_key {
	__u32 prefixlen; /* the 32 bits of family and pad count, so an IPv4 /24 is 56 */
	__u8 family;
	__u8 pad[3];
	__u8 addr[16];
};

#define LPM_STATIC 32 /* family and pad */
#define LPM_FULL (LPM_STATIC + 128)

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 131072);
	__uint(map_flags, BPF_F_NO_PREALLOC); /* only the agent writes it; most nodes need a fraction of the entries */
	__type(key, struct addr_key);	      /* whole addresses */
	__type(value, struct ipcache_entry);
} ipcache SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct lpm_key); /* all shorter prefixes */
	__type(value, struct ipcache_entry);
} ipcache_prefixes SEC(".maps");

struct cidr {
	__u32 identity; /* 0x01000001 to 0x01ffffff */
	__u32 bits;	/* prefixlen of the key, by which a look-up finds the next wider CIDR */
};

/* The CIDRs that policies name. policy.h describes which of the CIDRs around an address apply. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct lpm_key);
	__type(value, struct cidr);
} cidrs SEC(".maps");

#define EPOCH_IPCACHE 0 /* incremented after each change of ipcache_prefixes; and of ipcache, by agents without shards */
#define EPOCH_CIDRS 1	/* incremented after each change of cidrs */
#define EPOCHS 2
#define EPOCH_SHARDS_LOG 12
#define EPOCH_SHARDS (1 << EPOCH_SHARDS_LOG)

/* A flow is evaluated again when the identity of its peer may have changed, or a CIDR that a policy names. Each slot has one writer, and never
 * decreases. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, EPOCHS);
	__type(key, __u32);
	__type(value, __u32);
} epochs SEC(".maps");

/* The epochs of whole addresses, by their hash: a change of one address does not affect the flows with nearly all others. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, EPOCH_SHARDS);
	__type(key, __u32); /* see [epoch_shard] */
	__type(value, __u32);
} epoch_shards SEC(".maps");

static __always_inline __u32 world_identity(__u8 family) { return family == 6 ? world_ipv6 : world_ipv4; }

static __always_inline void lpm_key_make(struct lpm_key *key, const struct addr_key *addr)
{
	*key = (struct lpm_key){ .prefixlen = LPM_FULL, .family = addr->family };
	__builtin_memcpy(key->addr, addr->addr, sizeof(key->addr));
}

static __always_inline __u32 ipcache_identity(const struct addr_key *addr)
{
	struct ipcache_entry *entry = bpf_map_lookup_elem(&ipcache, addr);
	struct lpm_key key;

	if (entry)
		return entry->identity;
	lpm_key_make(&key, addr);
	entry = bpf_map_lookup_elem(&ipcache_prefixes, &key);
	return entry ? entry->identity : world_identity(addr->family);
}

/* ipcache_node finds the id of the node of an address; 0 when no other node has it. If no entry covers the address itself, the node of its range has
 * it. */
static __always_inline __u32 ipcache_node(const struct addr_key *addr)
{
	struct ipcache_entry *entry = bpf_map_lookup_elem(&ipcache, addr);
	struct lpm_key key;

	if (entry && entry->node)
		return entry->node;
	lpm_key_make(&key, addr);
	entry = bpf_map_lookup_elem(&ipcache_prefixes, &key);
	return entry ? entry->node : 0;
}

/* ipcache_in_range reports whether an address is in the pod range of another node. */
static __always_inline int ipcache_in_range(const struct addr_key *addr)
{
	struct ipcache_entry *range;
	struct lpm_key key;

	lpm_key_make(&key, addr);
	range = bpf_map_lookup_elem(&ipcache_prefixes, &key);
	return range && range->node;
}

/* identity_is_remote_node reports whether an identity is an identity of other nodes, with or without an API server. */
static __always_inline int identity_is_remote_node(__u32 identity)
{
	return identity == IDENTITY_REMOTE_NODE || identity == IDENTITY_API_SERVER || (identity & IDENTITY_SCOPE) == IDENTITY_SCOPE_REMOTE_NODE;
}

/* source_identity returns the identity of the sender of a packet that the stack delivers to a pod. A packet that was created on this node has no input device.
 * The source address proves nothing about that, so a forwarded packet never has the identity of the node. */
static __always_inline __u32 source_identity(struct __sk_buff *skb, const struct addr_key *source)
{
	__u32 identity;

	if (!skb->ingress_ifindex)
		return IDENTITY_HOST;
	identity = ipcache_identity(source);
	return identity == IDENTITY_HOST ? world_identity(source->family) : identity;
}

#define EPOCH_MULTIPLIER 0x9e3779b97f4a7c15ULL

/* epoch_shard returns the slot of an address in epoch_shards; EpochShard in Go computes the same. */
static __always_inline __u32 epoch_shard(const struct addr_key *addr)
{
	__u64 high = *(const __u32 *)addr->addr | (__u64) * (const __u32 *)(addr->addr + 4) << 32;
	__u64 low = *(const __u32 *)(addr->addr + 8) | (__u64) * (const __u32 *)(addr->addr + 12) << 32;

	return ((high * EPOCH_MULTIPLIER ^ low) * EPOCH_MULTIPLIER) >> (64 - EPOCH_SHARDS_LOG);
}

static __always_inline __u32 epoch_of(__u32 slot)
{
	__u32 *epoch = bpf_map_lookup_elem(&epochs, &slot);

	return epoch ? *epoch : 0;
}

/* Sums of epochs differ by small numbers, and programs of another generation add other slots. The sums of this generation are far from theirs, and the sums of
 * local peers far from the others: otherwise a sum that increases by 1 could reach one that was stored for another reason. */
#define EPOCH_SHARD_WEIGHT 0x9e3779b1U
#define EPOCH_LOCAL 0x80000000U

/* epochs_of changes with every change of the identity of an address, or of the CIDRs that policies name. For a local endpoint only the CIDRs count, because its
 * facts contain its identity. */
static __always_inline __u32 epochs_of(const struct addr_key *peer, int is_local)
{
	__u32 shard, *epoch;

	if (is_local)
		return epoch_of(EPOCH_CIDRS) + EPOCH_LOCAL;
	shard = epoch_shard(peer);
	epoch = bpf_map_lookup_elem(&epoch_shards, &shard);
	return epoch_of(EPOCH_IPCACHE) + epoch_of(EPOCH_CIDRS) + (epoch ? *epoch * EPOCH_SHARD_WEIGHT : 0);
}
