/* The flow that a packet belongs to, as the steps of a program find it out. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include "conntrack.h"
#include "endpoint.h"
#include "ipcache.h"
#include "ipv4.h"
#include "ipv6.h"
#include "l4.h"
#include "reasons.h"
#include "verdict.h"

/* "Self" is the endpoint at whose link a program runs: it sends what has the direction egress, and gets the rest. Its peer is the
 * other end. */
struct flow {
	/* From the packet. */
	struct addr_key from;
	struct addr_key to;
	struct l4 l4;
	__u32 end;	 /* of the packet; padding may follow */
	__u32 datagram;	 /* of a fragment, as on the wire */
	__u16 at;	 /* where the upper header begins, if this part has it */
	__u16 quoted;	 /* where an ICMP error has the IP header that it is about, once the rest here says what that is; otherwise 0 */
	__u8 fragment;	 /* FRAGMENT_... */
	__u8 family;
	__u8 direction;
	__u8 hops;
	__u16 self;	 /* local endpoint id */
	/* Found out. */
	__u16 peer;	   /* local endpoint id, 0 when it is none */
	__u32 peer_identity; /* 0 when nobody had to ask */
	__u32 check;	     /* of the key */
	__u32 epochs;	     /* of a peer elsewhere, as they were before anything was asked that they stand for */
	__u32 local_epochs;  /* of a local peer, likewise */
	__u8 second;	   /* the sender is the second side of the key */
	__u8 known;	   /* entry is that of a flow that goes on, not of one that begins */
	__u8 table;	   /* enum ct_table: where the entry of the flow is, or of one before it with the same key */
	__u8 path;	   /* enum flow_path, of what self sends */
	__u8 peer_refused; /* it was the peer's policy that said no */
	__u8 foreign;	   /* for self, and made neither by it nor by the node's own stack */
	__u8 service;	   /* FLOW_..., what the packet has to do with a service */
	__u8 midstream;	   /* a TCP segment without SYN whose connection has no entry */
	__u8 tunnelled;	   /* it came through the tunnel */
	__u8 by_tunnel;	   /* the peer is another node, and what self sends to it goes through the tunnel */
	__u8 by_vni;	   /* ipcache does not know the peer, and its identity is a VNI */
	__u32 tunnelled_identity; /* of its sender, as overlay_ingress found it; 0 when it is unknown */
	union ct_key key;
	struct ct_entry entry; /* what is to be stored, when the packet changes it */
	struct dealing dealing; /* what is evaluated, when policies are */
	struct policy_question question;
};

/* The flow of the packet that this CPU processes. Programs of these hooks do not interrupt each other on one CPU. The flow is not on the stack,
 * whose 512 bytes all functions of a call chain share. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct flow);
} flow_works SEC(".maps");

/* flow_current returns the flow of this CPU as the program before a tail call has left it. */
static __always_inline struct flow *flow_current(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&flow_works, &zero);
}

/* flow_work returns the flow of this CPU with all fields zero but the direction. */
static __always_inline struct flow *flow_work(__u8 direction)
{
	struct flow *flow = flow_current();

	if (!flow)
		return NULL;
	__builtin_memset(flow, 0, sizeof(*flow));
	flow->direction = direction;
	return flow;
}

#define FLOW_TO_SERVICE 1 /* it was for a service and goes to the backend now */
#define FLOW_TO_NEW 2	  /* ... and is the first one of its flow */
#define FLOW_OF_BACKEND 3 /* it comes from a backend, and from the service for its client */

static __always_inline void flow_of_ipv4(struct flow *flow, const struct ipv4_packet *packet)
{
	flow->from = addr_key_ipv4(packet->saddr);
	flow->to = addr_key_ipv4(packet->daddr);
	flow->family = 4;
	flow->l4.protocol = packet->protocol;
	flow->at = packet->l4;
	flow->end = packet->end;
	flow->datagram = packet->id;
	flow->fragment = packet->fragment;
	flow->hops = packet->ttl;
}

static __always_inline void flow_of_ipv6(struct flow *flow, const struct ipv6_packet *packet)
{
	flow->from = addr_key_ipv6(&packet->saddr);
	flow->to = addr_key_ipv6(&packet->daddr);
	flow->family = 6;
	flow->l4.protocol = packet->protocol;
	flow->at = packet->l4;
	flow->end = packet->end;
	flow->datagram = packet->id;
	flow->fragment = packet->fragment;
	flow->hops = packet->hop_limit;
}

/* flow_name makes the key. Its own function, as others here, so that the verifier walks through it once. */
__attribute__((noinline)) int flow_name(struct flow *flow)
{
	if (!flow)
		return 0;
	if (flow->family == 6) {
		flow->second = ct_key6_make(&flow->key, flow->from.addr, flow->to.addr, &flow->l4);
		flow->check = ct_check(&flow->key, sizeof(flow->key.v6) / 8);
		return 0;
	}
	flow->second = ct_key4_make(&flow->key, flow->from.addr, flow->to.addr, &flow->l4);
	flow->check = ct_check(&flow->key, sizeof(flow->key.v4) / 8);
	return 0;
}

/* flow_date notes the epochs of the peer of self, which has the source or the target address of the packet. */
__attribute__((noinline)) int flow_date(struct flow *flow, int is_source)
{
	struct addr_key peer;

	if (!flow)
		return 0;
	peer = is_source ? flow->from : flow->to;
	flow->epochs = epochs_of(&peer, 0);
	flow->local_epochs = epochs_of(&peer, 1);
	return 0;
}

/* flow_lookup copies the entry under the key of the flow, sets its table, and returns whether it is of this flow and not expired. A copy
 * suffices where nothing is written: the verifier would go through the rest once for each table. */
__attribute__((noinline)) int flow_lookup(struct flow *flow, __u32 now)
{
	struct ct_entry *entry;
	enum ct_table table;
	union ct_key key;

	if (!flow)
		return 0;
	key = flow->key;
	entry = ct_find(&key, flow->family, &table);
	flow->table = table;
	flow->entry.check = 0;
	if (!entry)
		return 0;
	flow->entry = *entry;
	return flow->entry.check == flow->check && !ct_expired(&flow->entry, now);
}

/* flow_self tells which side of the key self is. */
static __always_inline __u32 flow_self(const struct flow *flow) { return flow->second ^ (flow->direction == DIRECTION_INGRESS); }

/* is_foreign tells whether a packet for self was made neither by it nor by the node's own stack. */
static __always_inline int is_foreign(struct __sk_buff *skb, const struct flow *flow, const struct endpoint_facts *self)
{
	return flow->direction == DIRECTION_INGRESS && skb->ingress_ifindex && skb->ingress_ifindex != self->ifindex;
}

/* flow_stands tells whether all that an entry was judged by still holds, and finds out about the peer. */
__attribute__((noinline)) int flow_stands(struct flow *flow, const struct ct_entry *entry, const struct endpoint_facts *self)
{
	struct endpoint_facts *facts;
	__u32 own, peer;

	if (!flow || !entry || !self)
		return 0;
	own = ct_end(entry, flow_self(flow));
	peer = ct_end_id(entry, !own);
	if ((entry->flags & CT_TRANSLATED) && ct_end(entry, flow->second))
		flow->service = FLOW_OF_BACKEND;
	if (ct_end_id(entry, own) != self->id || ct_end_revision(entry, own) != self->revision)
		return 0;
	/* What was let in because it was made here nobody else goes on with, whose address may have been changed to the node's. */
	if (own && flow->foreign && entry->opener_identity == IDENTITY_HOST)
		return 0;
	/* ipcache may not know the sender, and then no epoch tells that another pod has its address now. */
	if (flow->tunnelled && ct_end_identity(entry, !own) != flow->tunnelled_identity)
		return 0;
	if (peer) {
		facts = endpoint_by_id(peer);
		if (!facts || facts->revision != ct_end_revision(entry, !own) || entry->epochs != flow->local_epochs)
			return 0;
	} else if (entry->epochs != flow->epochs) {
		return 0;
	}
	flow->peer = peer;
	flow->path = ct_path(entry);
	flow->by_tunnel = !!(entry->flags & CT_BY_TUNNEL);
	return 1;
}

/* flow_goes_on reports whether a packet changes nothing about an established flow, and then counts it. */
static __always_inline int flow_goes_on(struct __sk_buff *skb, struct flow *flow, struct ct_entry *entry, const struct endpoint_facts *self)
{
	__u32 now, expires;

	now = ct_now();
	expires = now + ct_any_timeout;
	if (flow->l4.protocol == IPPROTO_TCP) {
		if ((entry->flags & (CT_CLOSING | CT_STANDS)) != CT_STANDS)
			return 0;
		expires = now + ct_tcp_timeout;
	}
	if (ct_expired(entry, now) || !flow_stands(flow, entry, self))
		return 0;
	if (entry->expires != expires)
		entry->expires = expires;
	entry->packets++;
	entry->bytes += skb->len;
	return 1;
}
