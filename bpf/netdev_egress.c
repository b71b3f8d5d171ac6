//go:build ignore

/* Egress of devices that lead out of the node: replies of services, masqueraded pods, and flows of the node itself. */
#define LINK_HEADER_VARIES
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "lib/conntrack.h"
#include "lib/drop.h"
#include "lib/endpoint.h"
#include "lib/flow.h"
#include "lib/ipcache.h"
#include "lib/l4.h"
#include "lib/mark.h"
#include "lib/masquerade_maps.h"
#include "lib/nat.h"
#include "lib/nat_error.h"
#include "lib/netdev.h"
#include "lib/overlay.h"
#include "lib/reasons.h"
#include "lib/service_maps.h"
#include "lib/snat.h"

/* is_outside_of_all reports whether an address is neither in the cluster nor one to which pods send under their own addresses. It is a separate function, like
 * others here, because keys need stack space. */
__attribute__((noinline)) int is_outside_of_all(const struct flow *flow)
{
	struct addr_key to;
	struct lpm_key key;
	__u32 *keeps, identity;

	if (!flow)
		return 0;
	to = flow->to;
	identity = ipcache_identity(&to);
	/* With a tunnel the network has no route back to a pod, so other nodes are outside as well. */
	if (identity != world_identity(to.family) && !(tunnel_port && identity_is_remote_node(identity)))
		return 0;
	lpm_key_make(&key, &to);
	keeps = bpf_map_lookup_elem(&unmasqueraded, &key);
	return !keeps || !*keeps;
}

/* is_peer_initiated reports whether a pod's packet belongs to a flow that its peer initiated: the peer knows the pod by its own address. */
__attribute__((noinline)) int is_peer_initiated(struct flow *flow)
{
	if (!flow)
		return 0;
	if (flow->l4.role == L4_REPLY)
		return 1;
	flow_name(flow);
	return flow_lookup(flow, ct_now()) && ct_end(&flow->entry, flow->second);
}

/* is_masked reports whether a flow of this kind that a pod initiates gets the node's address. */
static __always_inline int is_masked(const struct flow *flow, __u32 ifindex)
{
	struct netdev *dev = bpf_map_lookup_elem(&netdevs, &ifindex);

	return dev && (dev->flags & (flow->family == 6 ? NETDEV_MASQUERADE_IPV6 : NETDEV_MASQUERADE_IPV4)) && is_outside_of_all(flow);
}

/* begin creates the entry of a flow with a new source, of a pod or of the node itself; the look-up of the flow has filled in key. */
__attribute__((noinline)) int begin(struct __sk_buff *skb, const struct flow *flow, __u32 endpoint)
{
	struct nat_work *work = nat_work();

	if (!flow || !work)
		return DROP(FILE_NETDEV_EGRESS, REASON_NAT_NO_MAPPING);
	work->entry = (struct nat_entry6){
		.sport = work->key.sport,
		.dport = work->key.dport,
		.reverse = NAT_FROM_OUTSIDE,
		.flags = endpoint ? NAT_MASQUERADE : NAT_NODE,
		.endpoint = endpoint,
	};
	__builtin_memcpy(work->entry.saddr, work->key.saddr, sizeof(work->entry.saddr));
	__builtin_memcpy(work->entry.daddr, work->key.daddr, sizeof(work->entry.daddr));
	if (endpoint && !netdev_source(skb->ifindex, flow->family))
		return DROP(FILE_NETDEV_EGRESS, REASON_NAT_NO_MAPPING);
	return snat_create(skb, flow->family);
}

/* is_in_use reports whether replies to a packet of the node would match the entry of another flow. It overwrites the key of the work with the key of the
 * packet. */
__attribute__((noinline)) int is_in_use(const struct flow *flow)
{
	struct nat_work *work = nat_work();

	if (!flow || !work)
		return 0;
	nat_key(work, &flow->to, &flow->from, flow->l4.dport, flow->l4.sport, flow->l4.protocol, NAT_FROM_OUTSIDE);
	work->other = work->key;
	nat_key(work, &flow->from, &flow->to, flow->l4.sport, flow->l4.dport, flow->l4.protocol, NAT_TO_OUTSIDE);
	return nat_load(flow->family, NAT_OTHER);
}

/* is_of_service reports whether a packet of the node has the address and port of a service as its source. */
__attribute__((noinline)) int is_of_service(const struct flow *flow)
{
	struct nat_work *work = nat_work();

	if (!flow || !work)
		return 0;
	work->choice.key = (struct service_key){ .addr = flow->from, .port = flow->l4.sport, .protocol = flow->l4.protocol };
	return !!bpf_map_lookup_elem(&services, &work->choice.key);
}

/* node_initiates reports whether a packet of the node initiates a flow that needs an entry. A reply of the node never does: a peer that makes the
 * node reply would fill the table. Three flows do: ICMP requests, because programs cannot look up the sockets that send them; a flow whose
 * replies would match the entry of a pod; and UDP from the port of a service, whose replies would be requests of that service
 * (netdev_ingress finds the sockets of TCP and of connected UDP). */
static __always_inline int node_initiates(const struct flow *flow)
{
	if (l4_is_icmp(flow->l4.protocol))
		return flow->l4.role == L4_REQUEST && snat_in_range(flow->l4.sport);
	if (!nat_has_ports(flow->l4.protocol))
		return 0;
	if (flow->l4.protocol == IPPROTO_TCP && (flow->l4.tcp_flags & (TCP_SYN | TCP_ACK)) != TCP_SYN)
		return 0;
	if (snat_in_range(flow->l4.sport) && is_in_use(flow)) /* pods get no ports below the range */
		return 1;
	return flow->l4.protocol == IPPROTO_UDP && is_of_service(flow);
}

/* follow translates a packet whose flow has an entry. */
static __always_inline verdict follow(struct __sk_buff *skb, struct flow *flow)
{
	struct nat_work *work = nat_work();
	verdict v;

	if (!work)
		return DROP(FILE_NETDEV_EGRESS, REASON_WRITE);
	if (!netdev_changes(work))
		return PASS;
	v = netdev_rewrite(skb, flow);
	return v == CONTINUE ? PASS : v;
}

/* mask_pod translates a packet of a pod that belongs to no known flow. */
static __always_inline verdict mask_pod(struct __sk_buff *skb, struct flow *flow, __u32 endpoint, __u32 ifindex)
{
	verdict v;

	if (!is_masked(flow, ifindex))
		return PASS;
	if (is_peer_initiated(flow)) {
		if (flow->fragment == FRAGMENT_FIRST)
			fragment_remember(flow);
		return PASS;
	}
	v = begin(skb, flow, endpoint);
	return v == CONTINUE ? follow(skb, flow) : v;
}

/* report translates an ICMP error about a packet of a translated flow. */
static __always_inline verdict report(struct __sk_buff *skb, struct flow *flow)
{
	__u32 inner_at = flow->at + ICMP_LENGTH;
	verdict v;

	if (!netdev_inner(skb, flow, NAT_TO_OUTSIDE))
		return PASS;
	v = nat_rewrite_error(skb, flow->family, inner_at, flow->at, flow->end);
	return v == CONTINUE ? PASS : v;
}

static __always_inline verdict evaluate(struct __sk_buff *skb, struct observation *obs)
{
	struct flow *flow = flow_work(DIRECTION_EGRESS);
	__u32 ifindex = skb->ifindex;
	struct endpoint_ref *ref;
	__u32 endpoint = 0, node = 0;
	verdict v;

	if (!flow)
		return DROP(FILE_NETDEV_EGRESS, REASON_INTERNAL);
	flow->self = NETDEV_SENDS;
	if (!bpf_map_lookup_elem(&netdevs, &ifindex))
		return PASS;
	v = netdev_read(skb, flow);
	if (v == PASS)
		return PASS;
	if ((ref = bpf_map_lookup_elem(&bpf_endpoints, &flow->from))) {
		node = ref->flags & ADDRESS_HOST;
		endpoint = node ? 0 : ref->id;
	}
	obs->endpoint = endpoint;
	if (v == STEP_UNKNOWN_FRAGMENT)
		return endpoint && is_masked(flow, ifindex) ? DROP(FILE_NETDEV_EGRESS, REASON_FRAGMENT_UNKNOWN) : PASS;
	/* A forwarded packet with an address of the node is from a client of a service, and netdev_ingress sends it on. */
	if (node && skb->ingress_ifindex)
		return PASS;
	if (node && overlay_has_outer(flow))
		return PASS; /* the tunnel is no connection of the node that needs an entry */
	if (flow->l4.role == L4_ERROR)
		return report(skb, flow);
	if (netdev_known(flow, NAT_TO_OUTSIDE))
		return follow(skb, flow);
	if (flow->fragment == FRAGMENT_LATER)
		return PASS;
	if (node) /* no room for the entry is no reason to keep the node from speaking */
		return node_initiates(flow) && begin(skb, flow, 0) == CONTINUE ? follow(skb, flow) : PASS;
	return endpoint ? mask_pod(skb, flow, endpoint, ifindex) : PASS;
}

SEC("tc")
int netdev_egress(struct __sk_buff *skb)
{
	struct observation obs = { .direction = DIRECTION_EGRESS };
	verdict v = PASS;

	if (skb->tc_index == MARK_UNTRANSLATED)
		skb->tc_index = 0;
	else
		v = evaluate(skb, &obs);
	return finish(skb, v, &obs, TC_ACT_UNSPEC); /* other programs on the device come after us */
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
