/* Who stands behind an address that is no endpoint of this node, or that a packet merely claims as its source. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "endpoint.h"

/* Identities of all that no entry covers, by family. */
volatile const __u32 world_ipv4 = 2;
volatile const __u32 world_ipv6 = 2;

#define IDENTITY_HOST 1

struct ipcache_entry {
	__u32 identity;
	__be32 tunnel_peer; /* node to send to through the tunnel; 0 when none */
};

struct lpm_key {
	__u32 prefixlen; /* the 32 bits of family and pad count, so an IPv4 /24 is 56 */
	__u8 family;
	__u8 pad[3];
	__u8 addr[16];
};

#define LPM_FULL (32 + 128)

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 131072);
	__uint(map_flags, BPF_F_NO_PREALLOC); /* the agent alone writes it; most nodes need a fraction */
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

static __always_inline __u32 ipcache_identity(const struct addr_key *addr)
{
	struct ipcache_entry *entry = bpf_map_lookup_elem(&ipcache, addr);
	struct lpm_key key = { .prefixlen = LPM_FULL, .family = addr->family };

	if (entry)
		return entry->identity;
	__builtin_memcpy(key.addr, addr->addr, sizeof(key.addr));
	entry = bpf_map_lookup_elem(&ipcache_prefixes, &key);
	if (entry)
		return entry->identity;
	return addr->family == 6 ? world_ipv6 : world_ipv4;
}

/* source_identity names the sender of a packet that the stack hands to a pod. What was made on this node has no input
 * device; the source address proves nothing about that. */
static __always_inline __u32 source_identity(struct __sk_buff *skb, const struct addr_key *source)
{
	return skb->ingress_ifindex ? ipcache_identity(source) : IDENTITY_HOST;
}
