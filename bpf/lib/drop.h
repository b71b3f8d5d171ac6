/* The end of a packet's processing in a program: count it, and report it when it is dropped. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "events.h"
#include "metrics.h"
#include "packet.h"
#include "reasons.h"

/* The data about a packet that reports need. Steps fill it in. */
struct observation {
	__u32 src_label;
	__u32 dst_label;
	__u32 dst_id;
	enum direction direction;
	__u16 endpoint;
	__u16 pad;
};

/* Not inlined, so that the type information includes the enums, and the verifier checks one copy. */
static __noinline int drop_report(struct __sk_buff *skb, enum drop_reason reason, enum source_file file, __u16 line,
				  const struct observation *obs)
{
	struct drop_record record = {};
	__u32 captured = skb->len, missing = ETH_HLEN - link_header;

	if (captured > EVENT_CAPTURE_MAX - missing)
		captured = EVENT_CAPTURE_MAX - missing;
	record.event.type = EVENT_TYPE_DROP;
	record.event.reason = reason;
	record.event.source = obs->endpoint;
	record.event.hash = bpf_get_hash_recalc(skb);
	record.event.len_orig = skb->len;
	record.event.version = EVENT_VERSION;
	record.event.src_label = obs->src_label;
	record.event.dst_label = obs->dst_label;
	record.event.dst_id = obs->dst_id;
	record.event.line = line;
	record.event.file = file;
	record.event.ifindex = skb->ifindex;
	/* Readers expect a frame: packets of links without a header get one without addresses. */
	if (missing)
		((struct ethhdr *)record.packet)->h_proto = skb->protocol;
	/* No packet is shorter than this. The verifier requires a lower bound, and before Linux 6.8 derives none from != 0. */
	if (captured < ETH_HLEN || bpf_skb_load_bytes(skb, 0, record.packet + missing, captured))
		captured = missing = 0;
	record.event.len_cap = captured + missing;
	return event_emit(&record, sizeof(record.event) + captured + missing);
}

/* drop ends a packet for the reason of a verdict. It is a separate function, so that the verifier checks it once and not for each reason. */
__attribute__((noinline)) int drop(struct __sk_buff *skb, verdict v, const struct observation *obs)
{
	__u8 reason = drop_reason_of(v);
	__u32 endpoint;

	if (!obs)
		return TC_ACT_SHOT;
	endpoint = obs->endpoint;
	metrics_count(reason, obs->direction, skb->len);
	if (reason != REASON_CONTROL_TRAFFIC && token_take(bpf_map_lookup_elem(&drop_tokens, &endpoint)))
		drop_report(skb, reason, drop_file_of(v), drop_line_of(v), obs);
	return TC_ACT_SHOT;
}

/* finish converts a verdict into the action for the kernel; pass is the action for packets that the program leaves unchanged. A code that is no verdict drops
 * the packet. */
static __always_inline int finish(struct __sk_buff *skb, verdict v, const struct observation *obs, int pass)
{
	if (v >= 0 && v != PASS && v != REDIRECTED)
		v = DROP(FILE_DROP, REASON_INTERNAL);
	if (v < 0)
		return drop(skb, v, obs);
	metrics_count(REASON_FORWARDED, obs->direction, skb->len);
	return v == REDIRECTED ? TC_ACT_REDIRECT : pass;
}
