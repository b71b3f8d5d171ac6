/* Devices that lead out of the node: the source addresses of packets that leave by them, and the destinations for which pods keep their addresses. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "endpoint.h"
#include "ipcache.h"

#define NETDEVS_MAX 256

enum netdev_flag {
	NETDEV_MASQUERADE_IPV4 = 1, /* flows that pods initiate to the outside over this device get its IPv4 address */
	NETDEV_MASQUERADE_IPV6 = 2,
};

/* The addresses are also used without masquerading, for remote backends of services. */
struct netdev {
	__be32 ipv4; /* primary address of the device, 0 for none */
	enum netdev_flag flags; /* any of them */
	__u8 ipv6[16] __attribute__((aligned(8))); /* all 0 for none */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, NETDEVS_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32); /* ifindex of a device that leads out */
	__type(value, struct netdev);
} netdevs SEC(".maps");

/* Destinations for which pods keep their addresses although ipcache has the world for them: the native routing CIDRs, and exclusions. The longest prefix around
 * an address decides: 1 keeps the address, 0 masquerades. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct lpm_key);
	__type(value, __u32);
} unmasqueraded SEC(".maps");
