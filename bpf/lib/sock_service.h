/* Services at the socket: a requested service address is replaced by a backend before a packet exists, and a backend's address by the service's address when
 * the process reads a peer address. */
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
/* 1: sockets of pods are left to the programs on their links. */
const volatile __u32 sock_host_only = 0;
/* 1: processes of the node may not bind the ports of services. */
const volatile __u32 sock_bind_protection = 1;

enum sock_result {
	SOCK_UNCHANGED = 0,  /* no service, or one that the programs on links handle */
	SOCK_TRANSLATED = 1, /* negative values: the process gets this error */
};

/* After a minute without use a backend of an unconnected socket is chosen again, like the default timeout of flows without a connection. */
#define SOCK_IDLE_NS 60000000000ULL

/* Slots that are scanned for a backend that has moved. With more slots, the service may get another backend. */
#define SOCK_SCAN 64

/* sock_find finds the service of an address. */
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

/* sock_rejected counts a rejected call like a dropped packet. The processing of packets may interrupt it. */
static __always_inline int sock_rejected(enum drop_reason reason, enum direction direction, int error)
{
	__u32 slot = (__u32)reason * DIRECTIONS + direction;
	struct metrics_value *value = bpf_map_lookup_elem(&metrics, &slot);

	if (value)
		__sync_fetch_and_add(&value->packets, 1);
	return error;
}

/* sock_no_backend returns the result for a process that connects or sends to a service without backends. With SERVICE_DROP the program on a pod's link drops the
 * packet. No such program is on the path of the node's own processes, so they get the error that a firewall would give. */
static __always_inline int sock_no_backend(const struct choice *choice)
{
	__u64 netns;

	if (!(choice->service.flags & SERVICE_DROP))
		return sock_rejected(REASON_NO_BACKEND, DIRECTION_EGRESS, -ECONNREFUSED);
	__builtin_memcpy(&netns, choice->client.client, sizeof(netns));
	if (netns != sock_host_netns)
		return SOCK_UNCHANGED;
	return sock_rejected(REASON_NO_BACKEND, DIRECTION_EGRESS, -EPERM);
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

/* sock_connect translates the address to which a socket connects. */
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
		return sock_no_backend(&choice);
	peer = bpf_sk_storage_get(&sock_connected, ctx->sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	if (!peer)
		return sock_rejected(REASON_CT_INSERT, DIRECTION_EGRESS, -ENOMEM);
	sock_remember(peer, to, &choice);
	to->addr = choice.backend.addr;
	to->port = choice.backend.port;
	return SOCK_TRANSLATED;
}

/* sock_belongs reports whether the backend of a socket still takes new flows of the service. It is a separate function, like others here, which the verifier
 * checks once. */
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
		return 0; /* the backend id belongs to another backend now */
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

/* sock_slot returns the index for a service: its own, or the least recently used one. */
__attribute__((noinline)) int sock_slot(const struct sock_peers *sent, const struct sock_end *service)
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

/* sock_service_of returns the index of the service with a backend, or -1. If several services have the backend, it is the one with the latest send. */
__attribute__((noinline)) int sock_service_of(const struct sock_peers *sent, const struct sock_end *from)
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

/* sock_at returns the slot with an index, or NULL. The compiler knows the bounds of a function's result, the verifier does not. */
static __always_inline struct sock_peer *sock_at(struct sock_peers *sent, int place)
{
	asm volatile("" : "+r"(place));
	return place >= 0 && place < SOCK_PEERS ? &sent->peers[place] : NULL;
}

/* sock_forget removes the services with a backend, because the process sends to the backend itself. */
static __always_inline void sock_forget(struct bpf_sock_addr *ctx, const struct sock_end *to)
{
	struct sock_peers *sent = bpf_sk_storage_get(&sock_sent, ctx->sk, NULL, 0);

	for (int i = 0; sent && i < SOCK_PEERS; i++) { /* each may be another service */
		struct sock_peer *peer = sock_at(sent, sock_service_of(sent, to));

		if (!peer)
			return;
		peer->backend_id = 0;
		peer->used = 0;
	}
}

/* sock_send translates the destination of a UDP send. */
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
		return sock_rejected(REASON_CT_INSERT, DIRECTION_EGRESS, -ENOMEM);
	now = bpf_ktime_get_ns();
	peer = sock_at(sent, sock_slot(sent, to));
	if (!peer)
		return SOCK_UNCHANGED; /* the verifier requires this check */
	if (!peer->backend_id || !sock_is(to, &peer->service, peer->service_port) || now - peer->used > SOCK_IDLE_NS ||
	    !sock_belongs(&choice, peer)) {
		if (!service_choose(&choice))
			return sock_no_backend(&choice);
		sock_remember(peer, to, &choice);
	}
	peer->used = now;
	to->addr = peer->backend;
	to->port = peer->backend_port;
	return SOCK_TRANSLATED;
}

/* sock_requested replaces the backend, to which a socket is connected, by the address that the process requested. */
static __always_inline int sock_requested(struct bpf_sock_addr *ctx, struct sock_end *from)
{
	struct sock_peer *peer = bpf_sk_storage_get(&sock_connected, ctx->sk, NULL, 0);

	if (!peer || !sock_is(from, &peer->backend, peer->backend_port))
		return SOCK_UNCHANGED;
	from->addr = peer->service;
	from->port = peer->service_port;
	return SOCK_TRANSLATED;
}

/* sock_sender replaces the backend that sent a datagram by the service to which the UDP socket sent. */
static __noinline int sock_sender(struct bpf_sock_addr *ctx, struct sock_end *from)
{
	struct sock_peers *sent;
	struct sock_peer *peer;

	if (sock_requested(ctx, from) == SOCK_TRANSLATED)
		return SOCK_TRANSLATED;
	sent = bpf_sk_storage_get(&sock_sent, ctx->sk, NULL, 0);
	if (!sent)
		return SOCK_UNCHANGED;
	peer = sock_at(sent, sock_service_of(sent, from));
	if (!peer)
		return SOCK_UNCHANGED;
	from->addr = peer->service;
	from->port = peer->service_port;
	return SOCK_TRANSLATED;
}

/* sock_serves reports whether a service uses an address of the node and a port. */
static __always_inline int sock_serves(const struct sock_end *at, __u8 protocol)
{
	struct service_key key = { .addr = at->addr, .port = at->port, .protocol = protocol, .scope = SCOPE_EXTERNAL };
	struct service *service = bpf_map_lookup_elem(&services, &key);

	return service && (service->flags & (SERVICE_NODE_PORT | SERVICE_LOOPBACK));
}

/* sock_in_use reports whether a process may not bind an address, because its packets belong to a service. The wildcard address includes the loopback addresses,
 * where each NodePort is; and the IPv6 wildcard includes all of IPv4, unless the socket is IPv6-only. */
static __noinline int sock_in_use(struct bpf_sock_addr *ctx, const struct sock_end *at)
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
