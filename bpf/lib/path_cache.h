/* The results of look-ups for packets between pods of different nodes, which each CPU keeps until the next tick of the kernel's clock (jiffies, every 1 to 10 ms).
 * Within a tick the next packets of a flow need no look-up of addresses, nodes, devices and routes, so changes of these take effect with the next tick. A change
 * of an endpoint takes effect at once, because the revision of its facts is compared. */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "conntrack.h"
#include "encap.h"
#include "endpoint.h"
#include "whole.h"

#define PATH_CACHE_LOG 7
#define PATH_CACHE_SLOTS (1 << PATH_CACHE_LOG)

/* What the results are for. */
enum path_use {
	PATH_NONE = 0,	   /* an empty slot */
	PATH_SEND = 1,	   /* packets of a pod to pods of other nodes */
	PATH_RECEIVE = 2,  /* packets that arrive without a tunnel */
	PATH_DECAPSULATE = 3, /* packets that arrive in a tunnel */
};

/* The packets to which results apply. Fields without a meaning for a use are 0. */
struct path_key {
	struct addr_key from; /* of the inner packet, in a tunnel */
	struct addr_key to;
	__be16 ports[2]; /* source and destination of a sent packet, where its protocol has ports */
	__u32 input;	 /* ifindex of the device on which they arrive */
	__be32 outer[2]; /* source and destination of the outer header of a received packet */
	__u32 vni;	 /* of a received packet */
	__u8 protocol;	 /* of packets that are sent, or arrive without a tunnel; routes may depend on it */
	__u8 tos;	 /* likewise, or the traffic class; the outer header depends on it too */
	__u8 use;	 /* enum path_use */
	__u8 pad;
};
_Static_assert(sizeof(struct path_key) % 8 == 0, "compared by words");

struct path {
	struct path_key key;
	__u32 jiffies;	/* the tick of the look-ups */
	__u32 fits;	/* length of the longest segment that was looked up; longer ones may not fit */
	__u32 endpoint; /* id of the pod on this node */
	__u32 revision; /* of its facts */
	__u32 identity; /* of the sender of packets from the tunnel */
	/* Of sent packets. */
	__u32 output;	    /* ifindex of the device by which they leave */
	__u32 untranslated; /* 1: netdev_egress changes none of them */
	struct bpf_redir_neigh hop;
	__u32 tunnelled; /* 1: they leave in the tunnel */
	__u32 completer; /* in the tunnel: the device that completes their checksums, 0 without one */
	__u32 sum;	 /* of the words of the outer IP header, without its length, id and checksum */
	__u8 pad[4];
	__u64 outer[ENCAP_WORDS]; /* struct encap_headers; the fields that differ between packets are 0 */
};

static __always_inline struct encap_headers *path_outer(struct path *path) { return (void *)path->outer; }

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, PATH_CACHE_SLOTS);
	__type(key, __u32); /* see [path_slot] */
	__type(value, struct path);
} path_cache SEC(".maps");

/* The packet for which a path is looked up. It is in a map, because no stack has enough space for it; programs on the path of packets do not interrupt each
 * other on one CPU. */
struct path_work {
	struct path_key key;
	struct path path;    /* of a sent packet, until it is stored */
	struct whole packet; /* without outer headers */
	__u32 mtu; /* of a sent packet: the maximum that the path carries, 0 for no limit; when the packet is too long, the length that fits */
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct path_work);
} path_works SEC(".maps");

static __always_inline struct path_work *path_work(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&path_works, &zero);
}

/* path_has_ports reports whether all packets of a flow have the same first four bytes behind the IP header, its ports. */
static __always_inline int path_has_ports(const struct whole *packet)
{
	return whole_has_ports(packet) || packet->protocol == IPPROTO_SCTP || packet->protocol == IPPROTO_DCCP || packet->protocol == IPPROTO_UDPLITE;
}

/* path_read reads a packet without outer headers, and makes its key; the ports are 0. It reports whether the packet is whole. */
static __always_inline int path_read(struct __sk_buff *skb, struct path_work *work, enum path_use use)
{
	struct whole *packet = &work->packet;

	if (skb->vlan_present || !whole_read(skb, packet))
		return 0;
	work->mtu = 0;
	__builtin_memset(&work->key, 0, sizeof(work->key));
	work->key.from = packet->from;
	work->key.to = packet->to;
	work->key.input = skb->ifindex;
	work->key.protocol = packet->protocol;
	work->key.tos = packet->tos;
	work->key.use = use;
	return 1;
}

/* path_slot returns the slot of a key, with the results for the key or for others. A sender can choose flows that share a slot: they are looked up for each
 * packet, as without the cache. */
static __always_inline struct path *path_slot(const struct path_key *key)
{
	__u32 slot = ct_check(key, sizeof(*key) / 8) * 0x9e3779b1U >> (32 - PATH_CACHE_LOG);

	return bpf_map_lookup_elem(&path_cache, &slot);
}

/* path_endpoint returns the pod on this node when a slot has the results for a key and a segment of this length, otherwise NULL. */
static __always_inline struct endpoint_facts *path_endpoint(const struct path *path, const struct path_key *key, __u32 segment)
{
	struct endpoint_facts *facts;
	__u64 differ = path->jiffies ^ (__u32)bpf_jiffies64();

	for (int i = 0; i < (int)sizeof(*key); i += 8)
		differ |= word_at((const void *)&path->key + i) ^ word_at((const void *)key + i);
	if (differ || segment > path->fits)
		return NULL;
	facts = endpoint_by_id(path->endpoint);
	return facts && facts->revision == path->revision ? facts : NULL;
}

/* path_begin returns the revision of an endpoint's facts. It is read before the look-ups, and stored with their results. */
static __always_inline __u32 path_begin(const struct endpoint_facts *facts) { return *(const volatile __u32 *)&facts->revision; }

/* path_fill stores the key and the endpoint of results, and clears the others. The slot stays empty until path_publish. */
static __always_inline void path_fill(struct path *path, const struct path_key *key, __u32 segment, __u32 endpoint, __u32 revision)
{
	__builtin_memset(path, 0, sizeof(*path));
	path->key = *key;
	path->jiffies = bpf_jiffies64();
	path->fits = segment;
	path->endpoint = endpoint;
	path->revision = revision;
	path->key.use = PATH_NONE;
}

static __always_inline void path_publish(struct path *path, enum path_use use) { path->key.use = use; }
