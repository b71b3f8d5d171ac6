/* Sending packets of a pod to pods of other nodes, past the stack. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "direct.h"
#include "direct_send.h"
#include "endpoint.h"
#include "evaluate.h"
#include "ipcache.h"
#include "ipv4.h"
#include "ipv6.h"
#include "mark.h"
#include "path_cache.h"
#include "protocol.h"
#include "reasons.h"
#include "to_node.h"
#include "whole.h"

/* path_look_up finds the path of a packet to a pod of another node and stores it in a slot: CONTINUE, STEP_TOO_BIG with work->mtu, or PASS when the stack must
 * send the packet. The source port of outer headers depends on more than the key when the packet has no ports, so such a path is found for each packet. */
__attribute__((noinline)) int path_look_up(struct __sk_buff *skb, struct path_work *work, struct path *slot)
{
	const struct endpoint_facts *self = endpoint_by_link(skb->ifindex);
	struct path *path;
	verdict v;

	if (!work || !slot || !self)
		return PASS;
	path = &work->path;
	path_fill(path, &work->key, work->packet.segment, self->id, path_begin(self));
	if (!has_address(self, &work->packet.from))
		return PASS;
	v = direct_look_up(skb, work, path); /* PASS when the node is not met by routes */
	if (v == PASS && tunnel_port)
		v = to_node_look_up(skb, work, path, self->identity);
	if (v != CONTINUE)
		return v;
	if (!path->tunnelled || path_has_ports(&work->packet))
		path_publish(path, PATH_SEND);
	*slot = *path;
	return CONTINUE;
}

/* path_send sends a packet of a pod to the node of its destination. It returns REDIRECTED, PASS when the stack must send the packet, or a drop. If the packet is
 * too long, that is a drop and *mtu is the length that fits. */
__attribute__((noinline)) int path_send(struct __sk_buff *skb, __u32 *mtu)
{
	struct path_work *work = path_work();
	struct path *path;
	verdict v;

	if (!mtu || !work || !path_read(skb, work, PATH_SEND) || work->packet.padded)
		return PASS;
	if (path_has_ports(&work->packet))
		__builtin_memcpy(work->key.ports, work->packet.ports, sizeof(work->key.ports));
	if (!(path = path_slot(&work->key)))
		return PASS;
	if (!path_endpoint(path, &work->key, work->packet.segment)) {
		v = path_look_up(skb, work, path);
		if (v == STEP_TOO_BIG) {
			if (!whole_is_rejected(&work->packet, work->mtu))
				return PASS;
			*mtu = work->mtu;
			return DROP_REJECT(FILE_PATH_SEND, REASON_TOO_BIG);
		}
		if (v != CONTINUE)
			return v;
	}
	if (path->tunnelled)
		v = protocol_written() < PROTOCOL_DECAPSULATES ? PASS : to_node(skb, &work->packet, path);
	else if (!direct_forwards())
		v = PASS;
	else
		v = work->packet.family == 6 ? ipv6_hop(skb) : ipv4_hop(skb);
	if (v != CONTINUE)
		return v;
	skb->priority = 0; /* that of a pod's socket is no business of the node's queues */
	skb->tc_index = path->untranslated ? MARK_UNTRANSLATED : 0;
	return bpf_redirect_neigh(path->output, &path->hop, sizeof(path->hop), 0) == REDIRECTED ? REDIRECTED : DROP(FILE_PATH_SEND, REASON_WRITE);
}
