//go:build ignore

/* Egress of waggle_host: the node's routes send all packets for pods to it, with a tunnel also those for pods of other nodes. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "lib/deliver.h"
#include "lib/drop.h"
#include "lib/endpoint.h"
#include "lib/eth.h"
#include "lib/ipcache.h"
#include "lib/ipv4.h"
#include "lib/ipv6.h"
#include "lib/overlay.h"
#include "lib/reasons.h"

/* towards finds the endpoint with an address of a pod range, or the node that has the address, and sends the packet to it. */
static __always_inline verdict towards(struct __sk_buff *skb, const struct addr_key *from, const struct addr_key *to, struct observation *obs)
{
	struct endpoint_ref *ref = bpf_map_lookup_elem(&bpf_endpoints, to);
	struct endpoint_facts *facts;

	if (!ref)
		return tunnel_port ? overlay_send(skb, from, to) : DROP(FILE_HOST_EGRESS, REASON_NO_ENDPOINT);
	if (ref->flags & ADDRESS_HOST)
		return PASS;
	if (!(facts = endpoint_by_id(ref->id)))
		return DROP(FILE_HOST_EGRESS, REASON_STALE_IP);
	obs->dst_label = facts->identity;
	return deliver_link(skb, facts);
}

static __always_inline verdict evaluate(struct __sk_buff *skb, struct observation *obs)
{
	struct ipv4_packet ipv4;
	struct ipv6_packet ipv6;
	struct addr_key from, to;
	__be16 proto;
	verdict v;

	if ((v = eth_parse(skb, &proto)) != CONTINUE)
		return v;
	switch (proto) {
	case bpf_htons(ETH_P_IP):
		if ((v = ipv4_parse(skb, &ipv4)) != CONTINUE)
			return v;
		if (ipv4_is_group(ipv4.daddr))
			return PASS;
		from = addr_key_ipv4(ipv4.saddr);
		to = addr_key_ipv4(ipv4.daddr);
		break;
	case bpf_htons(ETH_P_IPV6):
		if ((v = ipv6_parse(skb, &ipv6)) != CONTINUE)
			return v;
		if (ipv6_is_group(&ipv6.daddr))
			return PASS;
		from = addr_key_ipv6(&ipv6.saddr);
		to = addr_key_ipv6(&ipv6.daddr);
		break;
	default:
		return PASS; /* the packet stays between waggle_host and its peer */
	}
	v = towards(skb, &from, &to, obs);
	if (v < 0)
		obs->src_label = source_identity(skb, &from);
	return v;
}

SEC("tc")
int host_egress(struct __sk_buff *skb)
{
	struct observation obs = { .direction = DIRECTION_EGRESS };
	verdict v = evaluate(skb, &obs);

	return finish(skb, v, &obs, TC_ACT_UNSPEC); /* other programs on the device come after us */
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
