/* Policy of one endpoint for one peer: the verdict, the verdict of the policies in audit mode, and the verdict event. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "endpoint.h"
#include "events.h"
#include "ipcache.h"
#include "policy.h"
#include "reasons.h"

/* 1: evaluated flows are reported; 0: not. */
volatile const __u32 verdict_events = 1;

/* 1: CIDR rules for peers outside the cluster also match nodes; 0: not. */
volatile const __u32 policy_cidr_nodes = 0;

/* The verdict context: a peer and a packet for which a policy is evaluated. */
struct verdict_context {
	struct addr_key peer;
	__u32 identity; /* of the peer */
	__be16 port;	/* of the responder; the type of ICMP */
	__u8 protocol;
	__u8 direction; /* DIRECTION_EGRESS when the endpoint initiates the flow */
	__u8 fresh;	/* 1: a new flow, no further evaluation of a known one */
	__u8 audited;	/* set when the policies in audit mode would have denied a flow that the others allow */
	__u8 pad[2];
};

static __always_inline int is_outside(__u32 identity)
{
	if (identity == IDENTITY_WORLD || identity == IDENTITY_WORLD_IPV4 || identity == IDENTITY_WORLD_IPV6)
		return 1;
	if (!policy_cidr_nodes)
		return 0;
	return identity == IDENTITY_HOST || identity_is_remote_node(identity);
}

static __always_inline void verdict_report(struct __sk_buff *skb, __u32 endpoint, const struct verdict_context *d, verdict v, __u8 match)
{
	struct verdict_record *record;
	__u64 captured = skb->len;

	if (!verdict_events || !token_take(bpf_map_lookup_elem(&verdict_tokens, &endpoint)))
		return;
	record = bpf_ringbuf_reserve(&events, sizeof(*record), 0);
	if (!record) {
		event_lost();
		return;
	}
	record->event = (struct verdict_event){
		.type = EVENT_TYPE_VERDICT,
		.source = endpoint,
		.hash = bpf_get_hash_recalc(skb),
		.len_orig = captured,
		.version = EVENT_VERSION,
		.remote_label = d->identity,
		.verdict = v < 0 ? -(__s32)drop_reason_of(v) : 0,
		.dst_port = bpf_ntohs(d->port),
		.protocol = d->protocol,
		.flags = d->direction | (d->peer.family == 6 ? VERDICT_IPV6 : 0) | match << VERDICT_MATCH_SHIFT |
			 (d->audited ? VERDICT_AUDITED : 0),
	};
	if (captured > EVENT_CAPTURE_MAX)
		captured = EVENT_CAPTURE_MAX;
	asm volatile("" : "+r"(captured)); /* one register, whose bounds the verifier of Linux 6.1 knows */
	if (captured >= ETH_HLEN && !bpf_skb_load_bytes(skb, 0, record->packet, captured))
		record->event.len_cap = captured;
	bpf_ringbuf_submit(record, 0);
}

/* policy_of reads a policy id (the lower half) and its shape, which are adjacent in the facts, in one load: while the agent changes them, the shape of one
 * policy would hide the denies of another. */
static __always_inline __u64 policy_of(const __u32 *id) { return *(const volatile __u64 *)id; }

/* verdict_of evaluates an endpoint's policy for a peer; q is scratch space. It is a separate function, so that the verifier checks it once. */
__attribute__((noinline)) int verdict_of(struct __sk_buff *skb, const struct endpoint_facts *facts, struct verdict_context *d, struct policy_lookup *q)
{
	__u64 enforced, audited;
	verdict v;
	__u8 match;

	if (!facts || !d || !q)
		return DROP(FILE_POLICY, REASON_POLICY);
	if (d->direction == DIRECTION_EGRESS) {
		enforced = policy_of(&facts->policy_egress);
		audited = policy_of(&facts->audit_egress);
	} else {
		enforced = policy_of(&facts->policy_ingress);
		audited = policy_of(&facts->audit_ingress);
	}
	q->policy = (__u32)enforced;
	q->shape = enforced >> 32;
	q->identity = d->identity;
	q->port = d->port;
	q->protocol = d->protocol;
	q->outside = is_outside(d->identity);
	q->peer = d->peer;
	v = policy_evaluate(q);
	match = q->match;
	d->audited = 0;
	if (v == CONTINUE && (__u32)audited) {
		q->policy = (__u32)audited;
		q->shape = audited >> 32;
		if (policy_evaluate(q) != CONTINUE) {
			d->audited = 1;
			match = q->match;
		}
	}
	if (d->fresh || v != CONTINUE)
		verdict_report(skb, facts->id, d, v, match);
	return v;
}
