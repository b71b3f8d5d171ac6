/* The protocol between hooks, and how two adjacent generations agree on it. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

/* The protocol is all state that one hook leaves for another: the packet mark, read by the nftables rule, and by pod_ingress for packets of the tunnel; since 2
 * ENCAP_TC_INDEX, by which pod_ingress recognizes packets that netdev_ingress decapsulated; since 3 replies to packets that pod_egress sent past the stack,
 * which netdev_ingress keeps from the stack as well, since 4 also beside a tunnel. MARK_UNTRANSLATED is in each of them: it only saves look-ups. A generation reads all from LOWEST to HIGHEST, and writes the one in the
 * map. A generation that changes the protocol increments HIGHEST and keeps LOWEST for one release. The agent changes the value only while all hooks, of any
 * generation, read the old and the new one. */
enum protocol {
	PROTOCOL_LOWEST = 1,
	PROTOCOL_HIGHEST = 4,
};

#define PROTOCOL_DECAPSULATES 2 /* from this protocol on netdev_ingress decapsulates */
#define PROTOCOL_DIRECT 3	 /* from this protocol on packets between pods that routes connect bypass the stack, without a tunnel */
#define PROTOCOL_HYBRID 4	 /* from this protocol on they do so beside a tunnel as well */

struct datapath_state {
	enum protocol protocol; /* 0 before an agent has written it */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct datapath_state);
} datapath SEC(".maps");

/* protocol_written returns the protocol that this generation writes now. If there is only one, no look-up is necessary. */
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
