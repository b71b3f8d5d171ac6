/* Packets and bytes by reason and direction. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "reasons.h"

struct metrics_value {
	__u64 packets;
	__u64 bytes;
};

#define REASONS 256 /* all values of eight bits */

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, REASONS * DIRECTIONS);
	__type(key, __u32); /* reason * DIRECTIONS + direction */
	__type(value, struct metrics_value);
} metrics SEC(".maps");

/* metrics_count counts a packet, and returns the number of packets of this CPU for the reason and direction. */
static __always_inline __u64 metrics_count(__u8 reason, enum direction direction, __u32 bytes)
{
	__u32 slot = (__u32)reason * DIRECTIONS + direction;
	struct metrics_value *value = bpf_map_lookup_elem(&metrics, &slot);

	if (!value)
		return 0;
	value->bytes += bytes;
	return ++value->packets;
}
