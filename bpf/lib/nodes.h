/* The nodes of the cluster by their ids, and the addresses by which they send and receive in the tunnel. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "endpoint.h"

#define NODES_MAX 16384
#define NODE_THIS 0		/* id of this node; in ipcache it means that no other node has the address */
#define NODE_ADDR_UNDERLAY 1	/* kind of node_addr: the node sends and receives in the tunnel by the address */

/* The paths of pods' packets to a node. */
enum node_mode {
	NODE_TUNNEL = 0,
	NODE_DIRECT = 1, /* without a tunnel, by the routes of this node */
};

#define NODE_ROUTED 1 /* flag of a node: it may send to pods without the tunnel, as a node that receives no tunnel packets does */

/* One node. All zero for an id that no node has, and for a node that is not reached. Fields without a description are 0: they are reserved. */
struct node {
	__u8 mode; /* enum node_mode */
	__u8 encap;
	__u8 family; /* of underlay: 4 or 6; 0 when the node is not reached */
	__u8 flags; /* NODE_ROUTED */
	__u32 ifindex; /* device of this node that completes the checksums of packets to the node before they enter the tunnel; 0: a device of the underlay does */
	__u16 mtu; /* largest packet of a pod that the path carries, in bytes; 0 when only the tunnel, or the route, limits it */
	__u16 revision;
	__u8 underlay_source[16]; /* source of outer headers; zero when the kernel chooses */
	__u8 underlay[16];	  /* destination of outer headers; see [node_underlay] */
	__u8 nexthop[16];
	__u8 spare[4];
};

_Static_assert(sizeof(struct node) == 64, "a slot is one cache line");

struct node_addr {
	__u16 node; /* id; NODE_THIS for addresses of this node */
	__u8 kind;
	__u8 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, NODES_MAX);
	__type(key, __u32); /* id */
	__type(value, struct node);
} nodes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2 * NODES_MAX); /* one of each family */
	__uint(map_flags, BPF_F_NO_PREALLOC); /* only the agent writes it; most clusters need a fraction of the entries */
	__type(key, struct addr_key);
	__type(value, struct node_addr);
} node_addrs SEC(".maps");

/* node_of_underlay finds the node that sends and receives in the tunnel by an address. It reports whether there is one; this node counts. */
static __always_inline int node_of_underlay(const struct addr_key *addr, __u32 *node)
{
	struct node_addr *owner = bpf_map_lookup_elem(&node_addrs, addr);

	if (!owner || owner->kind != NODE_ADDR_UNDERLAY)
		return 0;
	*node = owner->node;
	return 1;
}

/* node_underlay finds the address of another node in the underlay. A slot is written in place, so a program may read half an address: the address is used only
 * if node_addrs, whose entries are replaced as a whole, maps it to the same node. */
static __always_inline struct node *node_underlay(__u32 id, struct addr_key *addr)
{
	struct node *node;
	__u32 owner;

	if (id == NODE_THIS || !(node = bpf_map_lookup_elem(&nodes, &id)) || !node->family)
		return NULL;
	*addr = (struct addr_key){ .family = node->family };
	__builtin_memcpy(addr->addr, node->underlay, sizeof(addr->addr));
	return node_of_underlay(addr, &owner) && owner == id ? node : NULL;
}
