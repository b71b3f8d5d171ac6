/* Tracking: a packet of a known flow whose cached verdict is valid updates the flow, any other packet is evaluated. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "conntrack.h"
#include "endpoint.h"
#include "evaluate.h"
#include "flow.h"
#include "fragments.h"
#include "ipcache.h"
#include "l4.h"
#include "packet.h"
#include "pod_service.h"
#include "reasons.h"
#include "related.h"

static __always_inline int is_for_service(const struct flow *flow) { return flow->service == FLOW_TO_SERVICE || flow->service == FLOW_TO_NEW; }

static __always_inline int is_of_responder(const struct flow *flow) { return ct_end(&flow->entry, flow->second); }

/* is_promoted reports whether a packet makes its flow an established one: its initiator sends again after a reply. Until then a flow counts against no
 * limit of an endpoint: an initiator with a source address that is not its own never gets the reply. With UDP it may still send again; then the limits
 * apply. */
static __always_inline int is_promoted(const struct flow *flow)
{
	return !is_of_responder(flow) && (flow->entry.flags & (CT_REPLIED | CT_RESET)) == CT_REPLIED && !(flow->l4.tcp_flags & TCP_SYN);
}

/* track_begin initializes the entry of a new or expired flow. check and flags are those of the entry under the same key, or 0. A segment of an expired
 * connection keeps the direction of the connection. */
__attribute__((noinline)) int track_begin(struct flow *flow, __u32 check, __u32 flags, __u32 now)
{
	if (!flow)
		return 0;
	flow->entry = (struct ct_entry){ .check = flow->check, .created = now, .flags = flow->second };
	if (flow->l4.protocol != IPPROTO_TCP || (flow->l4.tcp_flags & TCP_SYN))
		return 0;
	flow->midstream = check != flow->check;
	if (!flow->midstream)
		flow->entry.flags = flags & (CT_INITIATOR_SECOND | CT_BY_TUNNEL);
	return 0;
}

/* track_advance updates the state of a flow from its packet. It is not inlined: the verifier would multiply the states of its branches with the states of its
 * caller. */
__attribute__((noinline)) int track_advance(struct flow *flow, __u32 now)
{
	if (flow)
		ct_advance(&flow->entry, &flow->l4, !is_of_responder(flow), now);
	return 0;
}

/* track_update writes what a packet changed to the entry of its flow. */
__attribute__((noinline)) int track_update(const struct flow *flow)
{
	struct ct_entry *entry;
	enum ct_table table;
	union ct_key key;

	if (!flow)
		return 0;
	key = flow->key;
	entry = ct_find(&key, flow->family, &table);
	if (!entry || entry->check != flow->check || entry->created != flow->entry.created)
		return 0; /* another flow with the same key exists now */
	/* Only the flags of this direction change: the other direction may be closing on another CPU. */
	__sync_fetch_and_and(&entry->flags, flow->entry.flags | ~ct_own_reset(!is_of_responder(flow)));
	__sync_fetch_and_or(&entry->flags, flow->entry.flags);
	entry->expires = flow->entry.expires;
	entry->packets = flow->entry.packets;
	entry->bytes = flow->entry.bytes;
	return 0;
}

/* track_find finds the flow of a packet that track_quickly cannot handle, or initializes a new one. */
__attribute__((noinline)) int track_find(struct __sk_buff *skb, struct flow *flow, const struct endpoint_facts *self)
{
	__u32 now = ct_now(), flags;
	int valid = 0;

	if (!flow || !self)
		return DROP(FILE_TRACK, REASON_CT_INSERT);
	flow->known = flow_lookup(flow, now);
	flags = flow->entry.flags;
	/* A SYN on a connection that is closing, or from its responder, initiates another connection with the same ports. */
	if (flow->table != CT_NOWHERE && is_syn(&flow->l4) && ((flags & CT_CLOSING) || is_of_responder(flow)))
		flow->known = 0;
	if (flow->known) {
		valid = flow_verdict_valid(flow, &flow->entry, self);
	} else {
		/* An entry for a reply alone, under the key of a request, would allow the request after it. */
		if (flow->l4.role == L4_REPLY)
			return DROP(FILE_TRACK, REASON_CT_UNKNOWN);
		track_begin(flow, flow->entry.check, flags, now);
	}
	if (is_for_service(flow))
		flow->entry.flags |= CT_TRANSLATED;
	if (flow->by_tunnel)
		flow->entry.flags |= CT_BY_TUNNEL;
	flow->by_tunnel = !!(flow->entry.flags & CT_BY_TUNNEL);
	track_advance(flow, now);
	flow->entry.packets++;
	flow->entry.bytes += skb->len;
	if (!valid)
		return STEP_EVALUATE;
	if (flow->table != CT_IN_ESTABLISHED && is_promoted(flow))
		return STEP_KEEP;
	return track_update(flow);
}

/* track_keep stores a flow that was evaluated or promoted. */
__attribute__((noinline)) int track_keep(const struct flow *flow)
{
	struct ct_entry entry;
	union ct_key key;

	if (!flow)
		return DROP(FILE_TRACK, REASON_CT_INSERT);
	key = flow->key;
	entry = flow->entry;
	if (flow->table == CT_IN_ESTABLISHED)
		return ct_replace(&key, flow->family, &entry);
	if (is_promoted(flow))
		return ct_establish(&key, flow->family, flow->table, &entry);
	return ct_keep_new(&key, flow->family, flow->table, &entry);
}

/* track_evaluate evaluates the policies. The initiator of a connection without an entry is unknown, so the policies must allow both directions. Otherwise a client
 * whose access was revoked would keep its connection: the next segment of its server would create it in the other direction. */
__attribute__((noinline)) int track_evaluate(struct __sk_buff *skb, struct flow *flow, const struct endpoint_facts *self)
{
	verdict v;

	if (!flow)
		return DROP(FILE_TRACK, REASON_POLICY);
	if (flow->midstream) {
		flow->entry.flags ^= CT_INITIATOR_SECOND;
		v = flow_evaluate(skb, flow, self);
		flow->entry.flags ^= CT_INITIATOR_SECOND;
		if (v != CONTINUE)
			return v;
	}
	return flow_evaluate(skb, flow, self);
}

/* track_deny records the identity by which the sender of a packet from the tunnel was denied in a known flow. No epoch shows that this identity is another one
 * than before, so packets of self would pass. */
__attribute__((noinline)) int track_deny(const struct flow *flow)
{
	struct ct_entry *entry;
	enum ct_table table;
	union ct_key key;

	if (!flow)
		return 0;
	key = flow->key;
	entry = ct_find(&key, flow->family, &table);
	if (!entry || entry->check != flow->check || entry->created != flow->entry.created)
		return 0; /* another flow with the same key exists now */
	if (ct_end(entry, flow_self(flow)))
		entry->initiator_identity = flow->peer_identity;
	else
		entry->responder_identity = flow->peer_identity;
	__sync_fetch_and_or(&entry->flags, CT_BY_VNI);
	entry->epochs = flow->epochs + EPOCH_LOCAL; /* not those of any evaluation */
	return 0;
}

/* A flow that is no longer allowed stays until it expires, and each of its packets is evaluated again in the direction of the first packet, like the next
 * segment of an expired connection. */
static __always_inline verdict track_slowly(struct __sk_buff *skb, struct flow *flow, const struct endpoint_facts *self)
{
	verdict v = track_find(skb, flow, self);

	if (v == STEP_EVALUATE && !(v = track_evaluate(skb, flow, self)))
		v = STEP_KEEP;
	return v == STEP_KEEP ? track_keep(flow) : v;
}

/* track_quickly passes a packet that changes nothing about an established flow; 0 means that further look-ups are necessary. */
__attribute__((noinline)) int track_quickly(struct __sk_buff *skb, struct flow *flow, const struct endpoint_facts *self, int egress)
{
	struct ct_entry *entry;
	union ct_key key;

	if (!flow || !self)
		return 0;
	if (flow->l4.tcp_flags & (TCP_SYN | TCP_FIN | TCP_RST))
		return 0;
	key = flow->key;
	entry = ct_established(&key, flow->family);
	if (!entry || entry->check != flow->check)
		return 0;
	/* The initiator of a translated flow sends into it only by the service; this packet has the same key and belongs to another flow. */
	if (egress && (entry->flags & CT_TRANSLATED) && !ct_end(entry, flow->second))
		return 0;
	return flow_is_established(skb, flow, entry, self);
}

/* track_rest tracks a packet that track_quickly does not pass. The packet may already be translated. */
static __always_inline verdict track_rest(struct __sk_buff *skb, struct flow *flow, const struct endpoint_facts *self, const int egress)
{
	verdict v = track_slowly(skb, flow, self);

	if (!egress && v < 0 && flow->known && flow->tunnelled)
		track_deny(flow);
	/* A client that may not send to a backend must not fill the table of clients that may. */
	if (egress && v != CONTINUE && flow->service == FLOW_TO_NEW)
		nat_forget(flow->family);
	if (v == CONTINUE && flow->fragment == FRAGMENT_FIRST && !is_for_service(flow))
		fragment_remember(flow);
	return v;
}

/* track decides whether a packet may pass, and finds its peer. Later fragments have the ports of the first, which must have passed before them. Only a packet
 * of a pod can be for a service, and a packet of an established flow without one needs no service look-up. STEP_ERROR and STEP_SERVICE leave the rest to a
 * step; only packets of pods have these results. */
static __always_inline verdict track(struct __sk_buff *skb, struct flow *flow, const struct endpoint_facts *self, const int egress)
{
	verdict v;

	v = flow->fragment == FRAGMENT_LATER ? fragment_recall(flow) : l4_read(skb, flow->at, flow->end, 0, &flow->l4);
	if (v != CONTINUE)
		return v;
	flow->foreign = is_foreign(skb, flow, self);
	if (flow->l4.role == L4_ERROR)
		return egress ? STEP_ERROR : flow_related(skb, flow, self);
	if (tunnel_port && !egress)
		store_tunnel_sender(skb, flow);
	flow_name(flow);
	flow_date(flow, !egress);
	if (track_quickly(skb, flow, self, egress)) {
		if (flow->fragment == FRAGMENT_FIRST)
			fragment_remember(flow);
		return CONTINUE;
	}
	if (egress && (v = pod_translate(skb, flow, self)) != CONTINUE)
		return v;
	return track_rest(skb, flow, self, egress);
}
