/* Packets between a pod and services. A packet to a service is translated to a backend before any other look-up, so that policies evaluate the flow between the
 * pod and the backend; the pod gets the replies of the backend from the service. */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "conntrack.h"
#include "deliver.h"
#include "endpoint.h"
#include "flow.h"
#include "fragments.h"
#include "l4.h"
#include "metrics.h"
#include "nat.h"
#include "nat_create.h"
#include "nat_error.h"
#include "nat_find.h"
#include "nat_rewrite.h"
#include "reasons.h"
#include "related.h"
#include "service.h"

/* Address of the peer that a pod sees when it is its own backend: its kernel accepts no packet from outside with its own address as the source. */
volatile const __u32 service_loopback_ipv4 = bpf_htonl(0xa9fe2a01);
volatile const __u32 service_loopback_ipv6[4] = { bpf_htonl(0x01000000), 0, 0, bpf_htonl(0xa9fe2a01) };

#define PORT_TRIES 8
#define PORT_LOWEST 1024 /* lower ports may imply a privilege, which a client without it must not appear to have */

static __always_inline int is_syn(const struct l4 *l4) { return (l4->tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN; }

static __always_inline int service_has_protocol(__u8 protocol)
{
	return protocol == IPPROTO_TCP || protocol == IPPROTO_UDP || protocol == IPPROTO_SCTP;
}

static __always_inline void service_loopback(__u8 *addr, __u8 family)
{
	__u32 words[4] = { service_loopback_ipv4 };

	if (family == 6) {
		for (int i = 0; i < 4; i++)
			words[i] = service_loopback_ipv6[i];
	}
	__builtin_memcpy(addr, words, sizeof(words));
}

/* is_service_loopback reports whether a pod is its own backend. */
static __always_inline int is_service_loopback(const struct flow *flow)
{
	struct addr_key addr;

	service_loopback(addr.addr, flow->family);
	return same_address(&addr, &flow->to);
}

/* pod_is_established reports whether a packet belongs to an established flow without translation: a service that is created later does not take it over. If an entry
 * is left from a deleted translated flow, it is deleted, and another flow between the same ends may be created. */
__attribute__((noinline)) int pod_is_established(struct flow *flow)
{
	int is_current;
	union ct_key key;

	if (!flow)
		return 0;
	is_current = flow_lookup(flow, ct_now());
	if (flow->table == CT_NOWHERE || flow->entry.check != flow->check)
		return 0;
	if ((flow->entry.flags & CT_TRANSLATED) && !ct_end(&flow->entry, flow->second)) {
		key = flow->key;
		ct_forget(&key, flow->family, flow->table, &flow->entry);
		return 0;
	}
	/* A datagram without a reply is sent again: the service may get it. */
	if (is_syn(&flow->l4) || (flow->table != CT_IN_ESTABLISHED && !(flow->entry.flags & CT_REPLIED) && flow->l4.protocol != IPPROTO_TCP))
		return 0;
	return is_current;
}

/* pod_collides reports whether the pod itself has a flow to the backend, past the service, from the source port in entry. */
__attribute__((noinline)) int pod_collides(__u32 family)
{
	struct nat_work *work = nat_work();
	struct ct_entry *entry;
	enum ct_table table;
	union ct_key key = {};
	struct l4 l4 = {};
	__u32 check;

	if (!work)
		return 1;
	l4.sport = work->entry.sport;
	l4.dport = work->entry.dport;
	l4.protocol = work->key.protocol;
	if (family == 6) {
		ct_key6_make(&key, work->entry.saddr, work->entry.daddr, &l4);
		check = ct_check(&key, sizeof(key.v6) / 8);
	} else {
		ct_key4_make(&key, work->entry.saddr, work->entry.daddr, &l4);
		check = ct_check(&key, sizeof(key.v4) / 8);
	}
	entry = ct_find(&key, family, &table);
	return entry && entry->check == check && !(entry->flags & CT_TRANSLATED) && !ct_expired(entry, ct_now());
}

/* pod_begin stores the flow that entry describes, with another port when the pod has a flow with the same packets. */
__attribute__((noinline)) int pod_begin(__u32 family)
{
	struct nat_work *work = nat_work();
	verdict v;

	if (!work)
		return DROP(FILE_POD_SERVICE, REASON_NAT_NO_MAPPING);
	for (int i = 0; i < PORT_TRIES; i++) {
		v = pod_collides(family) ? STEP_IN_USE : nat_create(family);
		if (v != STEP_IN_USE)
			return v == CONTINUE ? STEP_TRANSLATE : v;
		if (work->key.protocol == IPPROTO_SCTP)
			break; /* the ports of SCTP cannot be changed */
		work->entry.sport = bpf_htons(PORT_LOWEST + bpf_get_prandom_u32() % (65536 - PORT_LOWEST));
	}
	return DROP(FILE_POD_SERVICE, REASON_NAT_NO_MAPPING);
}

/* pod_must_avoid reports whether a packet equals the translated packets of a flow to a service; the reverse key of the work is then that flow. */
static __always_inline int pod_must_avoid(const struct flow *flow, struct nat_work *work)
{
	if (flow->fragment == FRAGMENT_LATER)
		return 0;
	work->entry = (struct nat_entry6){
		.sport = work->key.sport,
		.dport = work->key.dport,
		.reverse = NAT_TO_POD,
		.flags = NAT_DIRECT,
		.endpoint = flow->self,
	};
	__builtin_memcpy(work->entry.saddr, work->key.saddr, sizeof(work->entry.saddr));
	__builtin_memcpy(work->entry.daddr, work->key.daddr, sizeof(work->entry.daddr));
	nat_reverse_key(&work->reverse, &work->entry, work->key.protocol);
	return nat_load(flow->family, NAT_REVERSE);
}

/* pod_avoid handles a packet that equals the translated packets of a flow to a service: the pod sends to the backend past the service, from the same port. The
 * packet gets another source port, so that the replies of the two flows differ. */
__attribute__((noinline)) int pod_avoid(const struct flow *flow)
{
	struct nat_work *work = nat_work();

	if (!flow || !work)
		return CONTINUE;
	return pod_must_avoid(flow, work) ? pod_begin(flow->family) : CONTINUE;
}

/* pod_requests_service looks up the service that is the destination of a packet, and reports whether there is one. */
__attribute__((noinline)) int pod_requests_service(const struct flow *flow)
{
	struct nat_work *work = nat_work();
	struct choice *choice;

	if (!flow || !work)
		return 0;
	choice = &work->choice;
	choice->key.addr = flow->to;
	choice->key.port = flow->l4.dport;
	choice->key.protocol = flow->l4.protocol;
	choice->internal = 1;
	return service_find(choice) && !(choice->service.flags & SERVICE_LOOPBACK);
}

/* pod_choose creates a flow to a backend of the service that is the destination of a packet. */
__attribute__((noinline)) int pod_choose(struct flow *flow)
{
	struct nat_work *work = nat_work();
	struct choice *choice;

	if (!flow || !work)
		return DROP(FILE_POD_SERVICE, REASON_NO_BACKEND);
	choice = &work->choice;
	choice->client.kind = flow->family == 6 ? AFFINITY_IPV6 : AFFINITY_IPV4;
	__builtin_memcpy(choice->client.client, flow->from.addr, sizeof(choice->client.client));
	if (is_service_loopback(flow)) /* in a flow without an entry: no other client has that address */
		return DROP_REJECT(FILE_POD_SERVICE, REASON_NAT_NO_MAPPING);
	if (!pod_requests_service(flow))
		return CONTINUE;
	if (flow->fragment == FRAGMENT_LATER)
		return DROP(FILE_POD_SERVICE, REASON_FRAGMENT_UNKNOWN);
	/* The backend of an existing connection is no longer known: its client must open a new one. */
	if (flow->l4.protocol == IPPROTO_TCP && !is_syn(&flow->l4))
		return DROP_REJECT(FILE_POD_SERVICE, REASON_NAT_NO_MAPPING);
	if (!service_choose(choice)) {
		if (choice->service.flags & SERVICE_DROP)
			return DROP(FILE_POD_SERVICE, REASON_NO_BACKEND);
		return DROP_REJECT(FILE_POD_SERVICE, REASON_NO_BACKEND);
	}
	if (flow->l4.protocol == IPPROTO_SCTP && choice->backend.port != flow->l4.dport)
		return DROP(FILE_POD_SERVICE, REASON_SERVICE_PROTOCOL);

	work->entry = (struct nat_entry6){
		.sport = flow->l4.sport,
		.dport = choice->backend.port,
		.reverse = NAT_TO_POD,
		.flags = NAT_SERVICE,
		.service = choice->service.id,
		.backend = choice->id,
		.endpoint = flow->self,
	};
	__builtin_memcpy(work->entry.saddr, flow->from.addr, sizeof(work->entry.saddr));
	__builtin_memcpy(work->entry.daddr, choice->backend.addr.addr, sizeof(work->entry.daddr));
	if (same_address(&flow->from, &choice->backend.addr)) {
		service_loopback(work->entry.saddr, flow->family);
		work->entry.reverse = NAT_FROM_POD;
	}
	return pod_begin(flow->family);
}

/* pod_loop returns a packet to the pod that sent it. A pod may always reach itself, so no policy is evaluated. */
static __always_inline verdict pod_loop(struct __sk_buff *skb, const struct endpoint_facts *self)
{
	metrics_count(REASON_FORWARDED, DIRECTION_INGRESS, skb->len);
	return deliver_reply(skb, self);
}

/* pod_rewrite translates a packet by the entry of its flow. It may redirect the packet. */
__attribute__((noinline)) int pod_rewrite(struct __sk_buff *skb, struct flow *flow, const struct endpoint_facts *self)
{
	struct nat_work *work = nat_work();
	verdict v;

	if (!flow || !self || !work)
		return DROP(FILE_POD_SERVICE, REASON_WRITE);
	if (flow->fragment == FRAGMENT_FIRST)
		fragment_remember(flow);
	if ((v = nat_rewrite(skb, flow->family, flow->fragment == FRAGMENT_LATER ? 0 : flow->at)) != CONTINUE)
		return v;
	if (work->entry.reverse == NAT_FROM_POD)
		return pod_loop(skb, self);
	__builtin_memcpy(flow->to.addr, work->entry.daddr, sizeof(flow->to.addr));
	flow->l4.sport = work->entry.sport;
	flow->l4.dport = work->entry.dport;
	flow_name(flow);
	flow_date(flow, 0);
	return CONTINUE;
}

/* pod_translate translates a packet of a pod to a service. STEP_SERVICE means that the packet may create such a flow, CONTINUE that it is translated or stays
 * unchanged. */
__attribute__((noinline)) int pod_translate(struct __sk_buff *skb, struct flow *flow, const struct endpoint_facts *self)
{
	struct nat_work *work = nat_work();

	if (!flow || !self || !work)
		return DROP(FILE_POD_SERVICE, REASON_WRITE);
	nat_key(work, &flow->from, &flow->to, flow->l4.sport, flow->l4.dport, flow->l4.protocol, NAT_FROM_POD);
	if (!service_has_protocol(flow->l4.protocol))
		return CONTINUE;
	if (nat_find(flow->family, flow->l4.tcp_flags)) {
		flow->service = FLOW_TO_SERVICE;
		return pod_rewrite(skb, flow, self);
	}
	if (pod_must_avoid(flow, work))
		return STEP_SERVICE;
	if (pod_is_established(flow))
		return CONTINUE;
	return is_service_loopback(flow) || pod_requests_service(flow) ? STEP_SERVICE : CONTINUE;
}

/* pod_begin_service creates a flow to a service, if pod_translate has found none. */
static __always_inline verdict pod_begin_service(struct __sk_buff *skb, struct flow *flow, const struct endpoint_facts *self)
{
	verdict v = pod_avoid(flow);

	if (v == CONTINUE)
		v = pod_choose(flow);
	if (v != STEP_TRANSLATE)
		return v;
	flow->service = FLOW_TO_NEW;
	return pod_rewrite(skb, flow, self);
}

/* pod_translate_error translates an ICMP error of a pod about a packet from a service, or from itself through a service. */
__attribute__((noinline)) int pod_translate_error(struct __sk_buff *skb, struct flow *flow, const struct endpoint_facts *self)
{
	struct nat_work *work = nat_work();
	__u32 at;
	verdict v;

	if (!flow || !self || !work)
		return DROP(FILE_POD_SERVICE, REASON_WRITE);
	work->from = flow->from;
	work->to = flow->to;
	work->l4 = flow->l4;
	at = flow->at;
	if ((v = flow_inner(skb, flow)) != CONTINUE)
		return v;
	nat_key(work, &flow->to, &flow->from, flow->l4.dport, flow->l4.sport, flow->l4.protocol, NAT_FROM_POD);
	if (nat_peek(flow->family)) {
		if ((v = nat_rewrite_error(skb, flow->family, flow->inner_at, flow->at, flow->end)) != CONTINUE)
			return v;
		if (work->entry.reverse == NAT_FROM_POD)
			return pod_loop(skb, self);
		__builtin_memcpy(work->to.addr, work->entry.daddr, sizeof(work->to.addr));
	}
	flow->from = work->from;
	flow->to = work->to;
	flow->l4 = work->l4;
	flow->at = at;
	flow->inner_at = 0;
	return CONTINUE;
}

/* pod_translate_back_error translates an ICMP error about a packet to a backend into one about the packet of the client to the service. */
__attribute__((noinline)) int pod_translate_back_error(struct __sk_buff *skb, struct flow *flow)
{
	struct nat_work *work = nat_work();

	if (!flow || !work)
		return DROP(FILE_POD_SERVICE, REASON_WRITE);
	nat_key(work, &flow->to, &flow->from, flow->l4.dport, flow->l4.sport, flow->l4.protocol, NAT_TO_POD);
	if (!nat_peek(flow->family))
		return DROP(FILE_POD_SERVICE, REASON_NAT_NO_MAPPING);
	return nat_rewrite_error(skb, flow->family, flow->inner_at, flow->at, flow->end);
}

/* pod_translate_back replaces the address of a backend in a reply by the address of the service. */
__attribute__((noinline)) int pod_translate_back(struct __sk_buff *skb, struct flow *flow)
{
	struct nat_work *work = nat_work();

	if (!flow || !work)
		return DROP(FILE_POD_SERVICE, REASON_WRITE);
	nat_key(work, &flow->from, &flow->to, flow->l4.sport, flow->l4.dport, flow->l4.protocol, NAT_TO_POD);
	if (!nat_find(flow->family, flow->l4.tcp_flags))
		return DROP(FILE_POD_SERVICE, REASON_NAT_NO_MAPPING);
	return nat_rewrite(skb, flow->family, flow->fragment == FRAGMENT_LATER ? 0 : flow->at);
}
