//go:build ignore

/* Ingress of the tunnel device: packets from other nodes, decapsulated. VXLAN has no authentication, so the program compares the outer source, for which the
 * underlay can vouch, with the node of the inner source. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "lib/drop.h"
#include "lib/endpoint.h"
#include "lib/eth.h"
#include "lib/flow.h"
#include "lib/forward.h"
#include "lib/identities.h"
#include "lib/ipcache.h"
#include "lib/ipv4.h"
#include "lib/ipv6.h"
#include "lib/mark.h"
#include "lib/metrics.h"
#include "lib/nat.h"
#include "lib/netdev.h"
#include "lib/nodes.h"
#include "lib/overlay.h"
#include "lib/overlay_inner.h"
#include "lib/reasons.h"

/* outer_ends reads the outer addresses. It reports whether the packet has any. */
static __always_inline int outer_ends(struct __sk_buff *skb, struct bpf_tunnel_key *key, struct addr_key *from, struct addr_key *to)
{
	if (!bpf_skb_get_tunnel_key(skb, key, sizeof(*key), 0)) {
		*from = addr_key_ipv4(bpf_htonl(key->remote_ipv4));
		*to = addr_key_ipv4(bpf_htonl(key->local_ipv4));
		return 1;
	}
	if (bpf_skb_get_tunnel_key(skb, key, sizeof(*key), BPF_F_TUNINFO_IPV6))
		return 0;
	*from = addr_key_ipv6((const struct in6_addr *)key->remote_ipv6);
	*to = addr_key_ipv6((const struct in6_addr *)key->local_ipv6);
	return 1;
}

/* outer checks the outer header. It sets node to the id of the sender. */
__attribute__((noinline)) int outer(struct __sk_buff *skb, __u32 *node, __u32 *vni)
{
	struct bpf_tunnel_key key = {};
	struct addr_key from, to;
	__u32 receiver;

	if (!node || !vni || !outer_ends(skb, &key, &from, &to))
		return DROP(FILE_OVERLAY_INGRESS, REASON_TUNNEL_KEY);
	/* The socket of the device receives on all addresses of the node. A packet that another node, or a pod under its address, sends to an address that the
	 * maps do not know as an underlay address of this node is no packet of the tunnel. */
	if (!node_of_underlay(&to, &receiver) || receiver != NODE_THIS)
		return DROP(FILE_OVERLAY_INGRESS, REASON_TUNNEL_KEY);
	*vni = key.tunnel_id;
	if (!node_of_underlay(&from, node) || *node == NODE_THIS)
		return DROP(FILE_OVERLAY_INGRESS, REASON_NO_NODE);
	if (key.tunnel_id == IDENTITY_UNKNOWN || key.tunnel_id == IDENTITY_HOST)
		return DROP(FILE_OVERLAY_INGRESS, REASON_UNKNOWN_IDENTITY);
	return CONTINUE;
}

/* to_client sends a packet from a backend of a service to the external client for which netdev_ingress chose the backend. PASS when the packet is for the node
 * itself. */
__attribute__((noinline)) int to_client(struct __sk_buff *skb)
{
	struct flow *flow = flow_work(DIRECTION_INGRESS);
	struct nat_work *work = nat_work();

	if (!flow || !work)
		return DROP(FILE_OVERLAY_INGRESS, REASON_INTERNAL);
	flow->self = NETDEV_RECEIVES;
	if (netdev_read(skb, flow) != CONTINUE)
		return PASS;
	if (flow->l4.role == L4_ERROR)
		return forward_error(skb, flow);
	return netdev_known(flow, NAT_FROM_OUTSIDE) && (work->entry.flags & NAT_REDIRECT) ? forward(skb, flow) : PASS;
}

static __always_inline verdict evaluate(struct __sk_buff *skb, struct observation *obs)
{
	struct ipv4_packet ipv4;
	struct ipv6_packet ipv6;
	struct addr_key from, to;
	__u32 node = 0;
	__be16 proto;
	verdict v;

	if ((v = outer(skb, &node, &obs->src_label)) != CONTINUE)
		return v;
	if ((v = eth_parse(skb, &proto)) != CONTINUE)
		return v;
	switch (proto) {
	case bpf_htons(ETH_P_IP):
		if ((v = ipv4_parse(skb, &ipv4)) != CONTINUE)
			return v;
		from = addr_key_ipv4(ipv4.saddr);
		to = addr_key_ipv4(ipv4.daddr);
		break;
	case bpf_htons(ETH_P_IPV6):
		if ((v = ipv6_parse(skb, &ipv6)) != CONTINUE)
			return v;
		from = addr_key_ipv6(&ipv6.saddr);
		to = addr_key_ipv6(&ipv6.daddr);
		break;
	default:
		return DROP(FILE_OVERLAY_INGRESS, REASON_UNKNOWN_L3);
	}
	if ((v = inner(&from, &to, node)) == CONTINUE)
		v = to_client(skb);
	if (v != PASS)
		return v;
	/* The nftables rule drops every packet from the tunnel device that does not have the mark. */
	skb->mark = mark_of(sender(skb, &from, obs->src_label));
	bpf_skb_change_type(skb, PACKET_HOST); /* nodes write any addresses into the inner frame */
	return PASS;
}

SEC("tc")
int overlay_ingress(struct __sk_buff *skb)
{
	struct observation obs = { .direction = DIRECTION_INGRESS };
	verdict v = evaluate(skb, &obs);

	return finish(skb, v, &obs, TC_ACT_UNSPEC); /* other programs on the device come after us */
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
