/* Services at the socket: whom a process asks for becomes a backend before there is a packet, and what it hears of the backend becomes
 * the service again. */
#pragma once

#include <linux/bpf.h>
#include <linux/errno.h>
#include <linux/in.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "metrics.h"
#include "reasons.h"
#include "service.h"
#include "sock_address.h"
#include "sock_maps.h"

/* The cookie of the node's own network namespace. */
const volatile __u64 sock_host_netns = 0;
/* Pods' sockets are left to the programs on their links. */
const volatile __u32 sock_host_only = 0;
/* Processes of the node may not bind the ports of services. */
const volatile __u32 sock_bind_protection = 1;

enum sock_result {
	SOCK_UNCHANGED = 0,  /* no service, or one that is left to the programs on links */
	SOCK_TRANSLATED = 1, /* negative: the process gets this error */
};

/* What an unconnected socket has not used for a minute is chosen anew, as flows without a connection end by default. */
#define SOCK_IDLE_NS 60000000000ULL

/* How many slots are looked through for a backend that has moved. A service with more of them may give another one. */
#define SOCK_SCAN 64

/* sock_choice finds the service of an address. */
static __always_inline int sock_find(struct bpf_sock_addr *ctx, const struct sock_end *to, struct choice *choice)
{
	__u64 netns;

	choice->key.addr = to->addr;
	choice->key.port = to->port;
	choice->key.protocol = ctx->protocol;
	choice->internal = 1;
	if (!service_find(choice))
		return 0;
	netns = bpf_get_netns_cookie(ctx);
	if (netns != sock_host_netns && (sock_host_only || (choice->service.flags & SERVICE_LOOPBACK)))
		return 0;
	choice->client.kind = AFFINITY_NETNS;
	__builtin_memcpy(choice->client.client, &netns, sizeof(netns));
	return 1;
}

/* sock_refused counts a call that is refused beside dropped packets. Packets may interrupt it. */
static __always_inline int sock_refused(enum drop_reason reason, enum direction direction, int error)
{
	__u32 slot = (__u32)reason * DIRECTIONS + direction;
	struct metrics_value *value = bpf_map_lookup_elem(&metrics, &slot);

	if (value)
		__sync_fetch_and_add(&value->packets, 1);
	return error;
}

/* sock_nobody says what becomes of a process that asks for a service without backends. To drop is what the programs on a pod's link do;
 * nothing of the sort stands between the node's own processes and the network, so they are told what a firewall would tell them. */
static __always_inline int sock_nobody(const struct choice *choice)
{
	__u64 netns;

	if (!(choice->service.flags & SERVICE_DROP))
		return sock_refused(REASON_NO_BACKEND, DIRECTION_EGRESS, -ECONNREFUSED);
	__builtin_memcpy(&netns, choice->client.client, sizeof(netns));
	if (netns != sock_host_netns)
		return SOCK_UNCHANGED;
	return sock_refused(REASON_NO_BACKEND, DIRECTION_EGRESS, -EPERM);
}

static __always_inline void sock_remember(struct sock_peer *peer, const struct sock_end *service, const struct choice *choice)
{
	peer->service = service->addr;
	peer->service_port = service->port;
	peer->backend = choice->backend.addr;
	peer->backend_port = choice->backend.port;
	peer->backend_id = choice->id;
	peer->slot = 0;
}

/* sock_connect translates whom a socket connects to. */
static __noinline int sock_connect(struct bpf_sock_addr *ctx, struct sock_end *to)
{
	struct choice choice = {};
	struct sock_peer *peer;

	if (!sock_find(ctx, to, &choice)) {
		if (bpf_sk_storage_get(&sock_connected, ctx->sk, NULL, 0))
			bpf_sk_storage_delete(&sock_connected, ctx->sk); /* it was connected to a service before */
		return SOCK_UNCHANGED;
	}
	if (!service_choose(&choice))
		return sock_nobody(&choice);
	peer = bpf_sk_storage_get(&sock_connected, ctx->sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	if (!peer)
		return sock_refused(REASON_CT_INSERT, DIRECTION_EGRESS, -ENOMEM);
	sock_remember(peer, to, &choice);
	to->addr = choice.backend.addr;
	to->port = choice.backend.port;
	return SOCK_TRANSLATED;
}

/* sock_belongs tells whether the backend that a socket has used still takes new flows of the service. The verifier walks through functions
 * of their own once. */
__attribute__((noinline)) int sock_belongs(const struct choice *choice, struct sock_peer *peer)
{
	__u32 slot, *id, wanted;
	struct backend backend = {};
	struct sock_end now = {};

	if (!choice || !peer)
		return 0;
	slot = peer->slot;
	wanted = peer->backend_id;
	if (!backend_copy(wanted, &backend))
		return 0;
	now.addr = backend.addr;
	now.port = backend.port;
	if (!sock_is(&now, &peer->backend, peer->backend_port))
		return 0; /* the number went to another backend */
	if (slot - choice->service.first < choice->service.count) {
		id = bpf_map_lookup_elem(&service_slots, &slot);
		if (id && *id == wanted)
			return 1;
	}
	for (__u32 i = 0; i < SOCK_SCAN; i++) {
		if (i >= choice->service.count)
			return 0;
		slot = choice->service.first + i;
		id = bpf_map_lookup_elem(&service_slots, &slot);
		if (id && *id == wanted) {
			peer->slot = slot;
			return 1;
		}
	}
	return 0;
}

/* sock_place is where a service is, or may be, remembered. */
__attribute__((noinline)) int sock_place(const struct sock_peers *sent, const struct sock_end *service)
{
	__u64 used = ~0ULL;
	int place = 0;

	if (!sent || !service)
		return 0;
	for (int i = 0; i < SOCK_PEERS; i++) {
		const struct sock_peer *peer = &sent->peers[i];

		if (peer->backend_id && sock_is(service, &peer->service, peer->service_port))
			return i;
		if (peer->used < used) {
			used = peer->used;
			place = i;
		}
	}
	return place;
}

/* sock_heard is as what a backend is remembered, or -1. Of several services with one backend it is the one sent to last. */
__attribute__((noinline)) int sock_heard(const struct sock_peers *sent, const struct sock_end *from)
{
	__u64 used = 0;
	int place = -1;

	if (!sent || !from)
		return -1;
	for (int i = 0; i < SOCK_PEERS; i++) {
		const struct sock_peer *peer = &sent->peers[i];

		if (peer->backend_id && sock_is(from, &peer->backend, peer->backend_port) && peer->used > used) {
			used = peer->used;
			place = i;
		}
	}
	return place;
}

/* sock_at is the place of that number, or NULL. The compiler sees the bounds of what a function returns, the verifier does not. */
static __always_inline struct sock_peer *sock_at(struct sock_peers *sent, int place)
{
	asm volatile("" : "+r"(place));
	return place >= 0 && place < SOCK_PEERS ? &sent->peers[place] : NULL;
}

/* sock_forget takes away that a backend was sent to as a service: the process means the backend itself. */
static __always_inline void sock_forget(struct bpf_sock_addr *ctx, const struct sock_end *to)
{
	struct sock_peers *sent = bpf_sk_storage_get(&sock_sent, ctx->sk, NULL, 0);

	for (int i = 0; sent && i < SOCK_PEERS; i++) { /* each may be another service */
		struct sock_peer *peer = sock_at(sent, sock_heard(sent, to));

		if (!peer)
			return;
		peer->backend_id = 0;
		peer->used = 0;
	}
}

/* sock_send translates to whom a UDP socket sends. */
static __noinline int sock_send(struct bpf_sock_addr *ctx, struct sock_end *to)
{
	struct choice choice = {};
	struct sock_peers *sent;
	struct sock_peer *peer;
	__u64 now;

	if (!sock_find(ctx, to, &choice)) {
		sock_forget(ctx, to);
		return SOCK_UNCHANGED;
	}
	sent = bpf_sk_storage_get(&sock_sent, ctx->sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	if (!sent)
		return sock_refused(REASON_CT_INSERT, DIRECTION_EGRESS, -ENOMEM);
	now = bpf_ktime_get_ns();
	peer = sock_at(sent, sock_place(sent, to));
	if (!peer)
		return SOCK_UNCHANGED; /* the verifier asks */
	if (!peer->backend_id || !sock_is(to, &peer->service, peer->service_port) || now - peer->used > SOCK_IDLE_NS ||
	    !sock_belongs(&choice, peer)) {
		if (!service_choose(&choice))
			return sock_nobody(&choice);
		sock_remember(peer, to, &choice);
	}
	peer->used = now;
	to->addr = peer->backend;
	to->port = peer->backend_port;
	return SOCK_TRANSLATED;
}

/* sock_asked gives back whom the process asked for, of the backend that it is connected to. */
static __always_inline int sock_asked(struct bpf_sock_addr *ctx, struct sock_end *from)
{
	struct sock_peer *peer = bpf_sk_storage_get(&sock_connected, ctx->sk, NULL, 0);

	if (!peer || !sock_is(from, &peer->backend, peer->backend_port))
		return SOCK_UNCHANGED;
	from->addr = peer->service;
	from->port = peer->service_port;
	return SOCK_TRANSLATED;
}

/* sock_sender gives back to whom a UDP socket sent, of the backend that answers. */
static __noinline int sock_sender(struct bpf_sock_addr *ctx, struct sock_end *from)
{
	struct sock_peers *sent;
	struct sock_peer *peer;

	if (sock_asked(ctx, from) == SOCK_TRANSLATED)
		return SOCK_TRANSLATED;
	sent = bpf_sk_storage_get(&sock_sent, ctx->sk, NULL, 0);
	if (!sent)
		return SOCK_UNCHANGED;
	peer = sock_at(sent, sock_heard(sent, from));
	if (!peer)
		return SOCK_UNCHANGED;
	from->addr = peer->service;
	from->port = peer->service_port;
	return SOCK_TRANSLATED;
}

/* sock_serves tells whether an address of the node and a port serve a service. */
static __always_inline int sock_serves(const struct sock_end *at, __u8 protocol)
{
	struct service_key key = { .addr = at->addr, .port = at->port, .protocol = protocol, .scope = SCOPE_EXTERNAL };
	struct service *service = bpf_map_lookup_elem(&services, &key);

	return service && (service->flags & (SERVICE_NODE_PORT | SERVICE_LOOPBACK));
}

/* sock_taken tells whether a process may not bind an address, because what comes to it goes to a service. Whoever binds all addresses
 * binds those of loopback, where each NodePort is; and all of IPv6 are all of IPv4 as well, unless the socket says otherwise. */
static __noinline int sock_taken(struct bpf_sock_addr *ctx, const struct sock_end *at)
{
	struct in6_addr loopback6 = { .s6_addr32 = { [3] = bpf_htonl(1) } }, all6 = {};
	struct sock_end end = { .port = at->port };
	__u8 protocol = ctx->protocol;

	if (sock_serves(at, protocol))
		return 1;
	end.addr = addr_key_ipv6(&all6);
	if (sock_is(&end, &at->addr, at->port)) {
		end.addr = addr_key_ipv6(&loopback6);
		if (sock_serves(&end, protocol))
			return 1;
	} else {
		end.addr = addr_key_ipv4(0);
		if (!sock_is(&end, &at->addr, at->port))
			return 0;
	}
	end.addr = addr_key_ipv4(bpf_htonl(INADDR_LOOPBACK));
	return sock_serves(&end, protocol);
}
