//go:build ignore

/* Ingress of devices that lead out of the node: clients of services, and replies to flows that left under the node's address. */
#define LINK_HEADER_VARIES
#include <linux/bpf.h>
#include <linux/if_packet.h>
#include <linux/in.h>
#include <linux/pkt_cls.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "lib/admit.h"
#include "lib/conntrack.h"
#include "lib/decap.h"
#include "lib/direct_receive.h"
#include "lib/drop.h"
#include "lib/endpoint.h"
#include "lib/flow.h"
#include "lib/forward.h"
#include "lib/l4.h"
#include "lib/masquerade_maps.h"
#include "lib/nat.h"
#include "lib/nat_error.h"
#include "lib/netdev.h"
#include "lib/nodes.h"
#include "lib/overlay.h"
#include "lib/reasons.h"
#include "lib/reject.h"
#include "lib/route.h"
#include "lib/service.h"
#include "lib/snat.h"

/* follow translates a packet whose flow has an entry. */
__attribute__((noinline)) int follow(struct __sk_buff *skb, struct flow *flow)
{
	struct nat_work *work = nat_work();
	verdict v;

	if (!work || !flow)
		return DROP(FILE_NETDEV_INGRESS, REASON_WRITE);
	if (!netdev_changes(work))
		return PASS;
	if (work->entry.flags & NAT_REDIRECT)
		return forward(skb, flow);
	v = netdev_rewrite(skb, flow);
	return v == CONTINUE ? PASS : v;
}

/* is_node_or_pod reports whether an address is one of this node or its pods: no packet from outside may have it as its source. */
static __always_inline int is_node_or_pod(const struct addr_key *addr)
{
	struct addr_key key = *addr;

	return !!bpf_map_lookup_elem(&bpf_endpoints, &key);
}

/* counts_for returns the endpoint id of a local backend, 0 when the backend is not local. */
static __always_inline __u32 counts_for(const struct addr_key *backend)
{
	struct endpoint_ref *ref = bpf_map_lookup_elem(&bpf_endpoints, backend);

	return ref && !(ref->flags & ADDRESS_HOST) ? ref->id : 0;
}

/* tunnel_source sets the source of the entry of the work to the node's address inside the tunnel, to which replies return through the tunnel. It reports
 * whether there is one. */
__attribute__((noinline)) int tunnel_source(__u32 family)
{
	struct nat_work *work = nat_work();
	struct overlay *now = overlay_now();

	return now && work ? nat_set_source(work, family, now->ipv4, (const word *)now->ipv6) : 0;
}

/* remote_backend changes the entry for a backend on another node, whose replies must return to this node. */
static __always_inline verdict remote_backend(struct __sk_buff *skb, struct flow *flow, struct nat_work *work)
{
	struct route *route = route_work();
	verdict v;

	work->entry.reverse = NAT_FROM_OUTSIDE;
	work->entry.flags |= NAT_REDIRECT;
	if (!route || !netdev_source(skb->ifindex, flow->family))
		return DROP(FILE_NETDEV_INGRESS, REASON_NAT_NO_MAPPING);
	if ((v = route_lookup(skb, flow->family, 0)) != CONTINUE)
		return v == STEP_TOO_BIG ? DROP_REJECT(FILE_NETDEV_INGRESS, REASON_TOO_BIG) : v;
	/* A node that is reached without the tunnel may be reached through it later. */
	if (overlay_leads(route->ifindex) || admit_destination(flow->family))
		return tunnel_source(flow->family) ? CONTINUE : DROP(FILE_NETDEV_INGRESS, REASON_NAT_NO_MAPPING);
	/* For a device without an address, the address of the device on which the request arrived is used. */
	if (route->ifindex != skb->ifindex && !netdev_source(route->ifindex, flow->family))
		netdev_source(skb->ifindex, flow->family);
	return CONTINUE;
}

/* is_reply reports whether the packet belongs to a connection of a process of the node: a process may have the port of a service as its source port. A listener
 * does not count, because the service takes precedence. The source of the entry of the work becomes the node. */
static __always_inline int is_reply(struct __sk_buff *skb, const struct flow *flow, struct nat_work *work)
{
	if (flow->l4.protocol == IPPROTO_TCP && (flow->l4.tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN)
		return 0;
	__builtin_memcpy(work->entry.saddr, flow->to.addr, sizeof(work->entry.saddr));
	__builtin_memcpy(work->entry.daddr, flow->from.addr, sizeof(work->entry.daddr));
	work->entry.sport = flow->l4.dport;
	work->entry.dport = flow->l4.sport;
	return snat_socket(skb, flow->family) == SNAT_CONNECTED;
}

/* serve looks up the service of a packet, and creates a flow to one of its backends; PASS when there is none. */
__attribute__((noinline)) int serve(struct __sk_buff *skb, struct flow *flow)
{
	struct nat_work *work = nat_work();
	struct choice *choice;
	verdict v;

	if (!flow || !work)
		return PASS;
	choice = &work->choice;
	choice->key.addr = flow->to;
	choice->key.port = flow->l4.dport;
	choice->key.protocol = flow->l4.protocol;
	choice->internal = 0;
	choice->hash = service_hash(&flow->from, &flow->to, flow->l4.sport, flow->l4.dport, flow->l4.protocol);
	choice->client.kind = flow->family == 6 ? AFFINITY_IPV6 : AFFINITY_IPV4;
	__builtin_memcpy(choice->client.client, flow->from.addr, sizeof(choice->client.client));
	if (!service_find(choice) || (choice->service.flags & SERVICE_LOOPBACK))
		return PASS;
	if (is_node_or_pod(&flow->from))
		return DROP(FILE_NETDEV_INGRESS, REASON_SOURCE_IP);
	if (is_reply(skb, flow, work))
		return PASS;
	if (!(choice->service.flags & SERVICE_OUTSIDE))
		return DROP(FILE_NETDEV_INGRESS, REASON_CLUSTER_IP);
	if (!service_admits(&choice->service, &flow->from))
		return DROP(FILE_NETDEV_INGRESS, REASON_SOURCE_RANGE);
	/* The backend of an existing connection is no longer known: its client must open a new one. */
	if (flow->l4.protocol == IPPROTO_TCP && (flow->l4.tcp_flags & (TCP_SYN | TCP_ACK)) != TCP_SYN) {
		if (flow->l4.tcp_flags & TCP_RST)
			return DROP(FILE_NETDEV_INGRESS, REASON_NAT_NO_MAPPING);
		return DROP_REJECT(FILE_NETDEV_INGRESS, REASON_NAT_NO_MAPPING);
	}
	if (!service_choose(choice)) {
		if (choice->service.flags & SERVICE_DROP)
			return DROP(FILE_NETDEV_INGRESS, REASON_NO_BACKEND);
		return DROP_REJECT(FILE_NETDEV_INGRESS, REASON_NO_BACKEND);
	}
	if (!nat_has_ports(flow->l4.protocol) && choice->backend.port != flow->l4.dport)
		return DROP(FILE_NETDEV_INGRESS, REASON_SERVICE_PROTOCOL);

	work->entry = (struct nat_entry6){
		.sport = flow->l4.sport,
		.dport = choice->backend.port,
		.reverse = NAT_TO_OUTSIDE,
		.flags = NAT_SERVICE,
		.service = choice->service.id,
		.backend = choice->id,
		.endpoint = counts_for(&choice->backend.addr),
	};
	__builtin_memcpy(work->entry.saddr, flow->from.addr, sizeof(work->entry.saddr));
	__builtin_memcpy(work->entry.daddr, choice->backend.addr.addr, sizeof(work->entry.daddr));
	if (!(choice->backend.flags & BACKEND_LOCAL) && (v = remote_backend(skb, flow, work)) != CONTINUE)
		return v;
	return snat_create(skb, flow->family);
}

static __always_inline int is_served(__u8 protocol)
{
	return protocol == IPPROTO_TCP || protocol == IPPROTO_UDP || protocol == IPPROTO_SCTP;
}

/* is_from_other_node reports whether the source of a packet is an address by which another node sends in the tunnel. */
__attribute__((noinline)) int is_from_other_node(const struct flow *flow)
{
	struct addr_key from;
	__u32 node;

	if (!flow)
		return 0;
	from = flow->from;
	return node_of_underlay(&from, &node) && node != NODE_THIS;
}

/* translate changes a packet of a translated flow, or one for a service. PASS when the stack, or a pod's program, handles it. */
__attribute__((noinline)) int translate(struct __sk_buff *skb, struct flow *flow)
{
	verdict v;

	if (!flow)
		return PASS;
	if (flow->l4.role == L4_ERROR)
		return forward_error(skb, flow);
	if (netdev_known(flow, NAT_FROM_OUTSIDE))
		return follow(skb, flow);
	if (flow->fragment == FRAGMENT_LATER || !is_served(flow->l4.protocol))
		return PASS;
	v = serve(skb, flow);
	return v == CONTINUE ? follow(skb, flow) : v;
}

static __always_inline verdict evaluate(struct __sk_buff *skb)
{
	__u32 ifindex = skb->ifindex;
	struct flow *flow;
	verdict v;

	/* Services look up only new flows, and no translation changes the addresses of a flow between pods, so an established one needs neither. */
	if (direct_possible() && (v = direct_receive(skb, 1)) != PASS)
		return v;
	if (encap_modes && (v = decapsulate(skb)) != PASS)
		return v;
	if (!(flow = flow_work(DIRECTION_INGRESS))) /* before each PASS: admit reads it */
		return DROP(FILE_NETDEV_INGRESS, REASON_INTERNAL);
	flow->self = NETDEV_RECEIVES;
	if (skb->pkt_type == PACKET_OTHERHOST || !bpf_map_lookup_elem(&netdevs, &ifindex))
		return PASS; /* the stack drops frames that a switch flooded to all of its ports, or a bridge forwards them */
	if ((v = netdev_read(skb, flow)) != CONTINUE)
		return PASS; /* also a later fragment of a datagram whose first fragment was not seen on this node */
	if (overlay_has_outer(flow) && is_node_or_pod(&flow->to)) /* the device handles it; only other nodes may send to the port */
		return is_from_other_node(flow) ? PASS : DROP(FILE_NETDEV_INGRESS, REASON_NO_NODE);
	v = translate(skb, flow);
	return v == PASS && direct_possible() ? direct_receive(skb, 0) : v;
}

/* reject_packet returns an unchanged packet to its sender as a reset or an ICMP error with the reason of the drop. */
__attribute__((noinline)) int reject_packet(struct __sk_buff *skb, verdict v)
{
	struct route *route = route_work();
	enum reject_kind kind = REJECT_NO_RECEIVER;

	if (drop_reason_of(v) == REASON_TOO_BIG)
		kind = REJECT_TOO_BIG;
	if (drop_reason_of(v) == REASON_HOPS)
		kind = REJECT_EXPIRED;
	if (!route || !reject(skb, 0, kind, kind == REJECT_TOO_BIG ? route->mtu : 0) || eth_turn(skb) != CONTINUE)
		return TC_ACT_SHOT;
	return bpf_redirect(skb->ifindex, 0);
}

SEC("tc")
int netdev_ingress(struct __sk_buff *skb)
{
	struct observation obs = { .direction = DIRECTION_INGRESS };
	verdict v = evaluate(skb);
	int action;

	if (v == PASS)
		admit(skb);
	action = finish(skb, v, &obs, TC_ACT_UNSPEC); /* other programs on the device run next */

	return drop_is_reject(v) ? reject_packet(skb, v) : action;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
