/* What hooks say to one another, and how two neighbouring generations agree on it. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

/* The protocol is everything that one hook leaves for another to read: today the packet mark, which our nftables rule
 * reads, and pod_ingress when the packet came through the tunnel; since protocol 2 ENCAP_TC_INDEX, by which pod_ingress knows what netdev_ingress has
 * decapsulated; and since protocol 3 replies of pods of other nodes to what pod_egress has sent past the stack, which netdev_ingress keeps from it as well, since protocol 4 also where there is a tunnel. A generation reads all from LOWEST to HIGHEST, and writes the one that the map says. One that changes the protocol
 * raises HIGHEST and keeps LOWEST for one release. The agent changes the value only while every hook, of whichever
 * generation, reads the old and the new one. */
enum protocol {
	PROTOCOL_LOWEST = 1,
	PROTOCOL_HIGHEST = 4,
};

#define PROTOCOL_DECAPSULATES 2 /* from here on netdev_ingress decapsulates */
#define PROTOCOL_DIRECT 3	 /* from here on pods of different nodes that meet by routes do so past the stack, where there is no tunnel */
#define PROTOCOL_HYBRID 4	 /* from here on they do where there is one as well */

struct datapath_state {
	enum protocol protocol; /* 0 before an agent has written it */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct datapath_state);
} datapath SEC(".maps");

/* protocol_written is the protocol in which this generation writes now. With a single one there is nothing to look up. */
static __always_inline __u32 protocol_written(void)
{
	struct datapath_state *state;
	__u32 zero = 0;

	if (PROTOCOL_LOWEST == PROTOCOL_HIGHEST)
		return PROTOCOL_HIGHEST;
	state = bpf_map_lookup_elem(&datapath, &zero);
	if (!state || state->protocol < PROTOCOL_LOWEST)
		return PROTOCOL_LOWEST;
	return state->protocol > PROTOCOL_HIGHEST ? PROTOCOL_HIGHEST : state->protocol;
}
