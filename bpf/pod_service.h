/* What a pod exchanges with services. What it sends to one goes to a backend before anything else is asked, so that policies judge the
 * flow between the two; what the backend answers comes to the pod from the service. */
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

/* Who a pod seems to talk to when a service's backend is the pod itself: its kernel takes nothing from outside that has its own address. */
volatile const __u32 service_loopback_ipv4 = bpf_htonl(0xa9fe2a01);
volatile const __u32 service_loopback_ipv6[4] = { bpf_htonl(0x01000000), 0, 0, bpf_htonl(0xa9fe2a01) };

#define PORT_TRIES 8
#define PORT_LOWEST 1024 /* ports below are a right, which a client that has none shall not seem to have */

static __always_inline int is_opening(const struct l4 *l4) { return (l4->tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN; }

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

/* is_service_loopback tells whether a pod answers itself. */
static __always_inline int is_service_loopback(const struct flow *flow)
{
	struct addr_key addr;

	service_loopback(addr.addr, flow->family);
	return same_address(&addr, &flow->to);
}

/* pod_goes_on tells whether a packet belongs to a flow that stands without translation: a service that begins does not take it over. What
 * is left of a translated flow that was forgotten makes room for another one between the same ends. */
__attribute__((noinline)) int pod_goes_on(struct flow *flow)
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
	/* A datagram that got no reply is sent again: it may go to the service. */
	if (is_opening(&flow->l4) || (flow->table != CT_IN_ESTABLISHED && !(flow->entry.flags & CT_REPLIED) && flow->l4.protocol != IPPROTO_TCP))
		return 0;
	return is_current;
}

/* pod_collides tells whether the pod itself speaks with the backend from the port that entry has, past the service. */
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

/* pod_begin stores the flow that entry describes, under another port when the pod has a flow that would look the same. */
__attribute__((noinline)) int pod_begin(__u32 family)
{
	struct nat_work *work = nat_work();
	verdict v;

	if (!work)
		return DROP(FILE_POD_SERVICE, REASON_NAT_NO_MAPPING);
	for (int i = 0; i < PORT_TRIES; i++) {
		v = pod_collides(family) ? STEP_TAKEN : nat_create(family);
		if (v != STEP_TAKEN)
			return v == CONTINUE ? STEP_TRANSLATE : v;
		if (work->key.protocol == IPPROTO_SCTP)
			break; /* its ports cannot be changed */
		work->entry.sport = bpf_htons(PORT_LOWEST + bpf_get_prandom_u32() % (65536 - PORT_LOWEST));
	}
	return DROP(FILE_POD_SERVICE, REASON_NAT_NO_MAPPING);
}

/* pod_must_evade reports whether a packet looks like one of a service's flows behind its translation; the twin of the work is then that flow. */
static __always_inline int pod_must_evade(const struct flow *flow, struct nat_work *work)
{
	if (flow->fragment == FRAGMENT_LATER)
		return 0;
	work->entry = (struct nat_entry6){
		.sport = work->key.sport,
		.dport = work->key.dport,
		.twin = NAT_TO_POD,
		.flags = NAT_DIRECT,
		.endpoint = flow->self,
	};
	__builtin_memcpy(work->entry.saddr, work->key.saddr, sizeof(work->entry.saddr));
	__builtin_memcpy(work->entry.daddr, work->key.daddr, sizeof(work->entry.daddr));
	nat_twin_key(&work->twin, &work->entry, work->key.protocol);
	return nat_load(flow->family, NAT_TWIN);
}

/* pod_evade is for a packet that looks like one of a service's flows behind its translation: the pod asks the backend past the service,
 * from the same port. It goes under another one, so that the answers to both can be told apart. */
__attribute__((noinline)) int pod_evade(const struct flow *flow)
{
	struct nat_work *work = nat_work();

	if (!flow || !work)
		return CONTINUE;
	return pod_must_evade(flow, work) ? pod_begin(flow->family) : CONTINUE;
}

/* pod_asks_service finds the service that a packet is for, and reports whether there is one. */
__attribute__((noinline)) int pod_asks_service(const struct flow *flow)
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

/* pod_choose begins a flow with a backend of the service that a packet is for. */
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
		return DROP_ALOUD(FILE_POD_SERVICE, REASON_NAT_NO_MAPPING);
	if (!pod_asks_service(flow))
		return CONTINUE;
	if (flow->fragment == FRAGMENT_LATER)
		return DROP(FILE_POD_SERVICE, REASON_FRAGMENT_UNKNOWN);
	/* The backend of a connection that began before is not known any more: its client shall begin another one. */
	if (flow->l4.protocol == IPPROTO_TCP && !is_opening(&flow->l4))
		return DROP_ALOUD(FILE_POD_SERVICE, REASON_NAT_NO_MAPPING);
	if (!service_choose(choice)) {
		if (choice->service.flags & SERVICE_DROP)
			return DROP(FILE_POD_SERVICE, REASON_NO_BACKEND);
		return DROP_ALOUD(FILE_POD_SERVICE, REASON_NO_BACKEND);
	}
	if (flow->l4.protocol == IPPROTO_SCTP && choice->backend.port != flow->l4.dport)
		return DROP(FILE_POD_SERVICE, REASON_SERVICE_PROTOCOL);

	work->entry = (struct nat_entry6){
		.sport = flow->l4.sport,
		.dport = choice->backend.port,
		.twin = NAT_TO_POD,
		.flags = NAT_SERVICE,
		.service = choice->service.id,
		.backend = choice->id,
		.endpoint = flow->self,
	};
	__builtin_memcpy(work->entry.saddr, flow->from.addr, sizeof(work->entry.saddr));
	__builtin_memcpy(work->entry.daddr, choice->backend.addr.addr, sizeof(work->entry.daddr));
	if (same_address(&flow->from, &choice->backend.addr)) {
		service_loopback(work->entry.saddr, flow->family);
		work->entry.twin = NAT_FROM_POD;
	}
	return pod_begin(flow->family);
}

/* pod_loop brings a pod what it sent itself. Nobody is kept from oneself, so nothing is asked. */
static __always_inline verdict pod_loop(struct __sk_buff *skb, const struct endpoint_facts *self)
{
	metrics_count(REASON_FORWARDED, DIRECTION_INGRESS, skb->len);
	return deliver_answer(skb, self);
}

/* pod_rewrite gives a packet the ends that the entry of its translated flow says. It may be on its way already. */
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
	if (work->entry.twin == NAT_FROM_POD)
		return pod_loop(skb, self);
	__builtin_memcpy(flow->to.addr, work->entry.daddr, sizeof(flow->to.addr));
	flow->l4.sport = work->entry.sport;
	flow->l4.dport = work->entry.dport;
	flow_name(flow);
	flow_date(flow, 0);
	return CONTINUE;
}

/* pod_translate translates what a pod sends into a flow with a service. STEP_SERVICE means that such a flow may begin, CONTINUE that the packet stays what
 * it is, or is translated. */
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
	if (pod_must_evade(flow, work))
		return STEP_SERVICE;
	if (pod_goes_on(flow))
		return CONTINUE;
	return is_service_loopback(flow) || pod_asks_service(flow) ? STEP_SERVICE : CONTINUE;
}

/* pod_begin_service begins a flow with a service, for which pod_translate has found none. */
static __always_inline verdict pod_begin_service(struct __sk_buff *skb, struct flow *flow, const struct endpoint_facts *self)
{
	verdict v = pod_evade(flow);

	if (v == CONTINUE)
		v = pod_choose(flow);
	if (v != STEP_TRANSLATE)
		return v;
	flow->service = FLOW_TO_NEW;
	return pod_rewrite(skb, flow, self);
}

/* pod_translate_error translates an ICMP error of a pod about what a service, or itself through one, has sent it. */
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
	if ((v = flow_quoted(skb, flow)) != CONTINUE)
		return v;
	nat_key(work, &flow->to, &flow->from, flow->l4.dport, flow->l4.sport, flow->l4.protocol, NAT_FROM_POD);
	if (nat_peek(flow->family)) {
		if ((v = nat_rewrite_error(skb, flow->family, flow->quoted, flow->at, flow->end)) != CONTINUE)
			return v;
		if (work->entry.twin == NAT_FROM_POD)
			return pod_loop(skb, self);
		__builtin_memcpy(work->to.addr, work->entry.daddr, sizeof(work->to.addr));
	}
	flow->from = work->from;
	flow->to = work->to;
	flow->l4 = work->l4;
	flow->at = at;
	flow->quoted = 0;
	return CONTINUE;
}

/* pod_translate_back_error translates an ICMP error about what a backend was sent into one about what the client sent to the service. */
__attribute__((noinline)) int pod_translate_back_error(struct __sk_buff *skb, struct flow *flow)
{
	struct nat_work *work = nat_work();

	if (!flow || !work)
		return DROP(FILE_POD_SERVICE, REASON_WRITE);
	nat_key(work, &flow->to, &flow->from, flow->l4.dport, flow->l4.sport, flow->l4.protocol, NAT_TO_POD);
	if (!nat_peek(flow->family))
		return DROP(FILE_POD_SERVICE, REASON_NAT_NO_MAPPING);
	return nat_rewrite_error(skb, flow->family, flow->quoted, flow->at, flow->end);
}

/* pod_translate_back makes what a backend answers an answer of the service. */
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
