/* The state of the tunnel. The agent writes it. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

struct overlay {
	__u32 ifindex; /* of the tunnel device; 0 while there is none */
	__be32 source; /* of the outer header, for programs of the previous release */
	__u32 way;     /* ifindex of waggle_host, into which the routes to pods of other nodes lead; 0 while there is none */
	__be32 ipv4;   /* of the node inside the tunnel; 0 when it has none */
	__u8 ipv6[16]; /* likewise */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct overlay);
} overlay SEC(".maps");

static __always_inline struct overlay *overlay_now(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&overlay, &zero);
}

/* overlay_is_device reports whether ifindex is the tunnel device. */
static __always_inline int overlay_is_device(__u32 ifindex)
{
	struct overlay *now;

	return (now = overlay_now()) && now->ifindex && now->ifindex == ifindex;
}
