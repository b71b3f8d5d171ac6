/* Policy evaluation of a flow: the identity of the peer, and the verdicts of the policies of both ends. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "conntrack.h"
#include "encap.h"
#include "endpoint.h"
#include "flow.h"
#include "identities.h"
#include "ipcache.h"
#include "ipv6.h"
#include "l4.h"
#include "mark.h"
#include "overlay_state.h"
#include "reasons.h"
#include "verdict.h"

/* A peer, as the evaluation determines it. */
struct peer {
	const struct endpoint_facts *facts; /* of a local endpoint that sends and receives without the stack, otherwise NULL */
	__u32 identity;
	__u32 revision;
};

static __always_inline int has_address(const struct endpoint_facts *facts, const struct addr_key *addr)
{
	if (addr->family == 6)
		return endpoint_has_ipv6(facts, (const struct in6_addr *)addr->addr);
	return endpoint_has_ipv4(facts, *(const __be32 *)addr->addr);
}

/* peer_of_sender finds the peer to which a pod sends. */
static __always_inline verdict peer_of_sender(const struct addr_key *to, enum flow_path path, struct peer *peer)
{
	struct endpoint_ref *ref = bpf_map_lookup_elem(&bpf_endpoints, to);
	struct endpoint_facts *facts;
	__u32 revision;

	if (!ref) {
		peer->identity = ipcache_identity(to);
		return CONTINUE;
	}
	if (ref->flags & ADDRESS_HOST) {
		peer->identity = IDENTITY_HOST;
		return CONTINUE;
	}
	if (!(facts = endpoint_by_id(ref->id)))
		return DROP(FILE_EVALUATE, REASON_NO_ENDPOINT);
	revision = *(volatile __u32 *)&facts->revision; /* read before the facts */
	if (!has_address(facts, to))
		return DROP(FILE_EVALUATE, REASON_STALE_IP);
	peer->identity = facts->identity;
	if (path == PATH_STACK) /* the program on the link of the peer evaluates what the stack forwards */
		return CONTINUE;
	peer->facts = facts;
	peer->revision = revision;
	return CONTINUE;
}

/* is_loopback reports whether the stack returns a packet to the pod that sent it, with any source address. Such a packet is always allowed. */
static __always_inline int is_loopback(struct __sk_buff *skb, const struct flow *flow, const struct endpoint_facts *self)
{
	return flow->direction == DIRECTION_INGRESS && skb->ingress_ifindex == self->ifindex;
}

/* is_encapsulated reports whether a pod sends to the tunnel of a node, to which only nodes may send. It is a separate function, because flow_evaluate has no stack
 * space left. */
__attribute__((noinline)) int is_encapsulated(const struct flow *flow, __u32 identity)
{
	return flow && tunnel_port && flow->l4.protocol == IPPROTO_UDP && flow->l4.dport == bpf_htons(tunnel_port) &&
	       (identity == IDENTITY_HOST || identity_is_remote_node(identity));
}

/* store_tunnel_sender stores the sender of a packet from the tunnel to a pod, received by the tunnel device or decapsulated by netdev_ingress; the packet has the
 * mark of overlay_ingress. Replies to a node bypass the stack of this node in two cases: the request bypassed it, or the request used the device and no route
 * into the tunnel leads to its source. Otherwise the connection tracking of this node has seen the request and must see the reply. */
__attribute__((noinline)) int store_tunnel_sender(struct __sk_buff *skb, struct flow *flow)
{
	struct addr_key from;
	int by_program;

	if (!flow)
		return 0;
	by_program = encap_modes && skb->tc_index == ENCAP_TC_INDEX;
	if (!by_program && !overlay_is_device(skb->ingress_ifindex))
		return 0;
	flow->tunnelled = 1;
	flow->tunnelled_identity = mark_identity(skb->mark);
	from = flow->from; /* helpers of Linux 6.1 take no key from the flow */
	flow->by_tunnel = identity_is_remote_node(flow->tunnelled_identity) && (by_program || !ipcache_in_range(&from));
	return 0;
}

/* identify_by_vni sets the identity of a peer that ipcache does not know: the VNI of its packet. A packet to the peer has no VNI, so the peer keeps the
 * identity by which the flow was evaluated, while policies know this identity. Otherwise the peer stays unknown. */
__attribute__((noinline)) int identify_by_vni(struct flow *flow)
{
	__u32 identity = IDENTITY_UNKNOWN;

	if (!flow)
		return 0;
	if (flow->direction == DIRECTION_INGRESS)
		identity = flow->tunnelled_identity;
	else if (flow->known && (flow->entry.flags & CT_BY_VNI))
		identity = ct_end_identity(&flow->entry, !ct_end(&flow->entry, flow_self(flow)));
	if (!identity_is_known(identity))
		return 0;
	flow->peer_identity = identity;
	flow->by_vni = 1;
	return 0;
}

/* flow_evaluate evaluates the policy of self and, if the peer receives the packet without the stack, the policy of the peer, in the direction of the first packet
 * of the flow. It stores the result in the entry. */
__attribute__((noinline)) int flow_evaluate(struct __sk_buff *skb, struct flow *flow, const struct endpoint_facts *self)
{
	struct addr_key address; /* of the peer; helpers of Linux 6.1 take no key from the flow */
	struct ct_entry *entry;
	struct verdict_context *d;
	struct peer peer = {};
	__u32 revision, own;
	int audited, sends;
	verdict v;

	if (!flow || !self)
		return DROP(FILE_EVALUATE, REASON_POLICY);
	entry = &flow->entry;
	d = &flow->verdict_context;
	/* Read first: a writer increments it after it changed the facts. */
	revision = *(volatile const __u32 *)&self->revision;
	sends = flow->direction == DIRECTION_EGRESS;
	d->peer = address = sends ? flow->to : flow->from;
	if (!sends)
		peer.identity = source_identity(skb, &address);
	else if ((v = peer_of_sender(&address, flow->known ? ct_path(entry) : PATH_PEER, &peer)) != CONTINUE)
		return v;
	if (sends && is_encapsulated(flow, peer.identity))
		return DROP(FILE_EVALUATE, REASON_ENCAPSULATED);
	flow->peer_identity = peer.identity;
	if (tunnel_port && peer.identity == IDENTITY_UNKNOWN)
		identify_by_vni(flow);
	flow->peer = peer.facts ? peer.facts->id : 0;
	flow->path = peer.facts ? PATH_PEER : PATH_STACK;

	own = ct_end(entry, flow_self(flow));
	d->protocol = flow->l4.protocol;
	d->port = ct_end(entry, flow->second) ? flow->l4.sport : flow->l4.dport;
	if (flow->l4.role != L4_PLAIN)
		d->port = bpf_htons(flow->l4.type);
	d->fresh = !flow->known;
	d->identity = flow->peer_identity;
	d->direction = own ? DIRECTION_INGRESS : DIRECTION_EGRESS;
	if (!is_loopback(skb, flow, self) && (v = verdict_of(skb, self, d, &flow->lookup)) != CONTINUE)
		return v;
	audited = d->audited;
	if (peer.facts) {
		d->peer = flow->from;
		d->identity = self->identity;
		d->direction = own ? DIRECTION_EGRESS : DIRECTION_INGRESS;
		if ((v = verdict_of(skb, peer.facts, d, &flow->lookup)) != CONTINUE) {
			flow->peer_denied = 1;
			return v;
		}
		audited |= d->audited;
	}

	entry->epochs = flow->local_epochs;
	entry->flags &= ~(CT_AUDITED | CT_PATHS | CT_BY_VNI);
	if (audited)
		entry->flags |= CT_AUDITED;
	if (flow->by_vni)
		entry->flags |= CT_BY_VNI;
	if (!peer.facts) {
		entry->flags |= CT_VIA_STACK;
		entry->epochs = flow->epochs;
	}
	if (own) {
		entry->responder = self->id;
		entry->responder_identity = self->identity;
		entry->responder_revision = revision;
		entry->initiator = flow->peer;
		entry->initiator_identity = is_loopback(skb, flow, self) ? IDENTITY_HOST : flow->peer_identity;
		entry->initiator_revision = peer.revision;
	} else {
		entry->initiator = self->id;
		entry->initiator_identity = self->identity;
		entry->initiator_revision = revision;
		entry->responder = flow->peer;
		entry->responder_identity = flow->peer_identity;
		entry->responder_revision = peer.revision;
	}
	return CONTINUE;
}
