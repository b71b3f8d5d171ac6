/* Events for the agent: a ring buffer, and a token bucket for each endpoint that limits its events. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "endpoint.h"
#include "reasons.h"

#define EVENT_TYPE_DROP 1
#define EVENT_TYPE_VERDICT 5
#define EVENT_VERSION 1
#define EVENT_CAPTURE_MAX 128

/* Cilium's drop notification, version 1. The captured bytes of the packet follow. */
struct drop_event {
	__u8 type;
	__u8 reason;
	__u16 source;	 /* endpoint whose link the packet used, 0 when unknown */
	__u32 hash;	 /* of the flow */
	__u32 len_orig;
	__u16 len_cap;
	__u16 version;
	__u32 src_label; /* identities */
	__u32 dst_label;
	__u32 dst_id;	 /* local endpoint that is the destination; 0 in egress */
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

/* Cilium's policy verdict notification, version 1. EVENT_CAPTURE_MAX bytes follow; len_cap of them are of the packet. */
struct verdict_event {
	__u8 type;
	__u8 reason;
	__u16 source; /* endpoint whose policy was evaluated */
	__u32 hash;   /* of the flow */
	__u32 len_orig;
	__u16 len_cap;
	__u16 version;
	__u32 remote_label; /* identity of the peer */
	__s32 verdict;	    /* 0 allows; a drop is its reason as a negative number */
	__u16 dst_port;	    /* in the host's order; the type of ICMP */
	__u8 protocol;
	__u8 flags; /* direction, VERDICT_... and the match from bit 3 on */
	__u8 auth_type;
	__u8 pad[3];
};
_Static_assert(sizeof(struct verdict_event) == 32, "readers know the layout by its size");

#define VERDICT_IPV6 0x04
#define VERDICT_MATCH_SHIFT 3
#define VERDICT_AUDITED 0x40 /* the policies in audit mode would have denied it */

struct verdict_record {
	struct verdict_event event;
	__u8 packet[EVENT_CAPTURE_MAX];
};

/* A token bucket for the events of an endpoint. CPUs race on it on purpose: an excess event costs less than a lock. */
struct token_bucket {
	__u64 refilled;	  /* jiffies of the last refill */
	__u32 tokens;
	__u32 suppressed; /* events that were not reported, since the map was created; drops were counted in metrics */
};

#define TOKENS_MAX 32
/* Jiffies for each refilled token: 25 to 250 events a second, by the kernel's CONFIG_HZ. */
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
	__type(key, __u32); /* local endpoint id; packets without an endpoint share 0 */
	__type(value, struct token_bucket);
} drop_tokens SEC(".maps");

/* Verdict events have separate token buckets: drops are reported however many flows an endpoint initiates. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ENDPOINTS_MAX);
	__type(key, __u32); /* local endpoint id */
	__type(value, struct token_bucket);
} verdict_tokens SEC(".maps");

static __always_inline int token_take(struct token_bucket *bucket)
{
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

static __always_inline void event_lost(void)
{
	__u32 zero = 0;
	__u64 *lost = bpf_map_lookup_elem(&events_lost, &zero);

	if (lost)
		(*lost)++;
}

/* Not inlined, so that the type information includes the record. */
static __noinline int event_emit(struct drop_record *record, __u32 size)
{
	if (!bpf_ringbuf_output(&events, record, size, 0))
		return 0;
	event_lost();
	return 1;
}
