/* The flow of a packet, as the steps of a program determine it. */
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

/* "Self" is the endpoint on whose link a program runs. It sends the packets with direction egress and receives all others. The peer is the other
 * end. */
struct flow {
	/* Read from the packet. */
	struct addr_key from;
	struct addr_key to;
	struct l4 l4;
	__u32 end;	 /* of the packet; padding may follow */
	__u32 datagram;	 /* id of a fragment's datagram, as on the wire */
	__u16 at;	 /* offset of the upper header, if this part of a datagram has it */
	__u16 inner_at;	 /* offset of the inner IP header in an ICMP error, once the other fields describe the inner packet; otherwise 0 */
	__u8 fragment;	 /* FRAGMENT_... */
	__u8 family;
	__u8 direction;
	__u8 ttl;
	__u16 self;	 /* local endpoint id */
	/* Determined by the steps. */
	__u16 peer;	   /* local endpoint id, 0 when it is not local */
	__u32 peer_identity; /* 0 when no look-up was necessary */
	__u32 check;	     /* of the key */
	__u32 epochs;	     /* of a remote peer, read before the look-ups that they cover */
	__u32 local_epochs;  /* of a local peer, likewise */
	__u8 second;	   /* 1: the sender is the second side of the key */
	__u8 known;	   /* entry is of an existing flow, not of a new one */
	__u8 table;	   /* enum ct_table: the table that has the entry of the flow, or of a previous flow with the same key */
	__u8 path;	   /* enum flow_path, of packets that self sends */
	__u8 peer_denied; /* the policy of the peer denied the packet */
	__u8 foreign;	   /* for self, and created neither by self nor by the node's own stack */
	__u8 service;	   /* FLOW_...: how the packet relates to a service */
	__u8 midstream;	   /* a TCP segment without SYN whose connection has no entry */
	__u8 tunnelled;	   /* the packet arrived through the tunnel */
	__u8 by_tunnel;	   /* the peer is another node, and packets of self to it leave through the tunnel */
	__u8 by_vni;	   /* ipcache does not know the peer, and its identity is a VNI */
	__u32 tunnelled_identity; /* of its sender, determined by overlay_ingress; 0 when it is unknown */
	union ct_key key;
	struct ct_entry entry; /* the entry to store, when the packet changes it */
	struct verdict_context verdict_context; /* verdict context, when policies are evaluated */
	struct policy_lookup lookup;
};

/* The flow of the packet that this CPU processes. Programs of these hooks do not interrupt each other on one CPU. The flow is not on the stack, because all
 * functions of a call chain share its 512 bytes. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct flow);
} flow_works SEC(".maps");

/* flow_current returns the flow of this CPU as the program before a tail call left it. */
static __always_inline struct flow *flow_current(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&flow_works, &zero);
}

/* flow_work returns the flow of this CPU, with all fields zero except the direction. */
static __always_inline struct flow *flow_work(__u8 direction)
{
	struct flow *flow = flow_current();

	if (!flow)
		return NULL;
	__builtin_memset(flow, 0, sizeof(*flow));
	flow->direction = direction;
	return flow;
}

#define FLOW_TO_SERVICE 1 /* the packet was for a service; its destination is the backend now */
#define FLOW_TO_NEW 2	  /* the same, and it is the first packet of its flow */
#define FLOW_OF_BACKEND 3 /* the packet is from a backend; its client gets it from the service */

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
	flow->ttl = packet->ttl;
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
	flow->ttl = packet->hop_limit;
}

/* flow_name makes the key. It is a separate function, like others here, so that the verifier checks it once. */
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

/* flow_date stores the epochs of the peer of self, which has the source or the destination address of the packet. */
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

/* flow_lookup copies the entry under the key of the flow, sets its table, and reports whether it is of this flow and not expired. A copy suffices for reading.
 * With a pointer the verifier would check the rest once for each table. */
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

/* flow_self returns the side of the key that self is. */
static __always_inline __u32 flow_self(const struct flow *flow) { return flow->second ^ (flow->direction == DIRECTION_INGRESS); }

/* is_foreign reports whether a packet for self was created neither by self nor by the node's own stack. */
static __always_inline int is_foreign(struct __sk_buff *skb, const struct flow *flow, const struct endpoint_facts *self)
{
	return flow->direction == DIRECTION_INGRESS && skb->ingress_ifindex && skb->ingress_ifindex != self->ifindex;
}

/* flow_verdict_valid reports whether the cached verdict of an entry is valid, and determines the peer. */
__attribute__((noinline)) int flow_verdict_valid(struct flow *flow, const struct ct_entry *entry, const struct endpoint_facts *self)
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
	/* A flow that was allowed as host traffic is not reusable by a packet of another origin, even if SNAT gave it the node's address. */
	if (own && flow->foreign && entry->initiator_identity == IDENTITY_HOST)
		return 0;
	/* If ipcache does not know the sender, no epoch shows that another pod has its address now. */
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

/* flow_is_established reports whether a packet changes nothing about an established flow, and then counts it. */
static __always_inline int flow_is_established(struct __sk_buff *skb, struct flow *flow, struct ct_entry *entry, const struct endpoint_facts *self)
{
	__u32 now = ct_now();

	if (!ct_is_open(entry, flow->l4.protocol, now) || !flow_verdict_valid(flow, entry, self))
		return 0;
	ct_continue(entry, flow->l4.protocol, now, skb->len);
	return 1;
}
