/* Encapsulation and decapsulation by programs: the data that they need to create the frames that the tunnel device would create. The device handles all unusual
 * packets. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/types.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* Frames of the tunnel that programs send and receive themselves: ENCAP_... bits, as far as the kernel supports them. */
volatile const __u32 encap_modes = 0;

#define ENCAP_SENDS_IPV4 1    /* frames to other nodes with IPv4 inside */
#define ENCAP_RECEIVES_IPV4 2 /* frames from them with IPv4 inside */
#define ENCAP_RECEIVES_IPV6 4 /* with IPv6 inside */
#define ENCAP_SENDS_IPV6 8    /* frames to other nodes with IPv6 inside */
#define ENCAP_SENDS (ENCAP_SENDS_IPV4 | ENCAP_SENDS_IPV6)

/* Value of tc_index in a packet that netdev_ingress has decapsulated, read by pod_ingress. The stack and its rules do not change that field. A process that can
 * set it in another network namespace cannot carry a mark into this one. */
#define ENCAP_TC_INDEX 0x5747

#define VXLAN_FLAGS 0x08000000 /* the VNI is valid, and no other flag is set */
#define VXLAN_VNI_SHIFT 8

/* All headers before the inner packet, after the Ethernet header of the link. */
struct encap_headers {
	struct iphdr ip;
	struct udphdr udp;
	__be32 flags; /* of VXLAN */
	__be32 vni;   /* in the upper 24 bits */
	struct ethhdr eth;
} __attribute__((packed, aligned(2)));

#define ENCAP_LENGTH 50
_Static_assert(sizeof(struct encap_headers) == ENCAP_LENGTH, "the overhead of the tunnel over IPv4");

#define ENCAP_WORDS ((ENCAP_LENGTH + 7) / 8) /* of eight bytes, for the headers */

#define ENCAP_INNER (ETH_HLEN + ENCAP_LENGTH) /* offset of the inner packet in a frame of the link */

/* Properties of the routes into the tunnel. The agent writes them. */
struct encap {
	__u32 mtu;	    /* of inner packets; 0 while the device encapsulates all */
	__u8 mac[ETH_ALEN]; /* of waggle_host: source and destination of inner frames */
	__u8 pad[2];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct encap);
} encap SEC(".maps");

static __always_inline struct encap *encap_now(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&encap, &zero);
}
