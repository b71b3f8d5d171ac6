/* Events for the agent: a ring buffer, and a token bucket per endpoint that keeps it from being flooded. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "endpoint.h"
#include "reasons.h"

#define EVENT_TYPE_DROP 1
#define EVENT_VERSION 1
#define EVENT_CAPTURE_MAX 128

/* Cilium's drop notification, version 1. The captured bytes of the packet follow. */
struct drop_event {
	__u8 type;
	__u8 reason;
	__u16 source;	 /* endpoint at whose link this happened, 0 when unknown */
	__u32 hash;	 /* of the flow */
	__u32 len_orig;
	__u16 len_cap;
	__u16 version;
	__u32 src_label; /* identities */
	__u32 dst_label;
	__u32 dst_id;	 /* local endpoint that it was meant for; 0 in egress */
	__u16 line;
	__u8 file;
	__s8 ext_error;
	__u32 ifindex;
};
_Static_assert(sizeof(struct drop_event) == 36, "readers know the layout by its size");

struct drop_record {
	struct drop_event event;
	__u8 packet[EVENT_CAPTURE_MAX];
};

/* One bucket of drop events. CPUs race on it on purpose: an event too many costs less than a lock. */
struct token_bucket {
	__u64 refilled;	  /* jiffies of the last refill */
	__u32 tokens;
	__u32 suppressed; /* drops that were counted in metrics and not reported, since boot of the map */
};

#define TOKENS_MAX 32
/* One event more every so many jiffies: 25 to 250 a second, by the kernel's CONFIG_HZ. */
#define TOKEN_JIFFIES 4

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 512 * 1024);
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64); /* events that found the ring buffer full */
} events_lost SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ENDPOINTS_MAX);
	__type(key, __u32); /* local endpoint id; 0 is shared by all that is nobody's */
	__type(value, struct token_bucket);
} drop_tokens SEC(".maps");

static __always_inline int token_take(__u32 endpoint)
{
	struct token_bucket *bucket = bpf_map_lookup_elem(&drop_tokens, &endpoint);
	__u64 now, more;

	if (!bucket)
		return 1;
	now = bpf_jiffies64();
	more = (now - bucket->refilled) / TOKEN_JIFFIES;
	if (more) {
		__u64 tokens = bucket->tokens + more;

		bucket->tokens = tokens < TOKENS_MAX ? tokens : TOKENS_MAX;
		bucket->refilled = now;
	}
	if (!bucket->tokens) {
		bucket->suppressed++;
		return 0;
	}
	bucket->tokens--;
	return 1;
}

/* Not inlined, so that the type information has the record. */
static __noinline int event_emit(struct drop_record *record, __u32 size)
{
	__u32 zero = 0;
	__u64 *lost;

	if (!bpf_ringbuf_output(&events, record, size, 0))
		return 0;
	lost = bpf_map_lookup_elem(&events_lost, &zero);
	if (lost)
		(*lost)++;
	return 1;
}
