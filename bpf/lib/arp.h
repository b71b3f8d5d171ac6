/* ARP of a pod: requests for the gateway are answered, all other messages are dropped. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_endian.h>
#include "deliver.h"
#include "endpoint.h"
#include "eth.h"
#include "packet.h"
#include "reasons.h"

/* The system's <linux/if_arp.h> includes headers of the C library. */
#define ARP_HARDWARE_ETHERNET 1
#define ARP_REQUEST 1
#define ARP_REPLY 2

struct arp_message {
	__be16 hardware;
	__be16 protocol;
	__u8 hardware_length;
	__u8 protocol_length;
	__be16 operation;
	__u8 sender_mac[ETH_ALEN];
	__be32 sender_ip;
	__u8 target_mac[ETH_ALEN];
	__be32 target_ip;
} __attribute__((packed));

static __always_inline int arp_is_ethernet_ipv4(const struct arp_message *arp)
{
	return arp->hardware == bpf_htons(ARP_HARDWARE_ETHERNET) && arp->protocol == bpf_htons(ETH_P_IP) &&
	       arp->hardware_length == ETH_ALEN && arp->protocol_length == sizeof(__be32);
}

/* arp_check evaluates a message. CONTINUE means that it is a request for the gateway. */
static __always_inline verdict arp_check(const struct arp_message *arp, const struct endpoint_facts *self)
{
	if (!arp_is_ethernet_ipv4(arp))
		return DROP(FILE_ARP, REASON_MALFORMED);
	if (!mac_equal(arp->sender_mac, self->pod_mac))
		return DROP(FILE_ARP, REASON_SOURCE_MAC);
	/* A probe, sent before an address is used, has the sender 0.0.0.0. */
	if (arp->sender_ip && !endpoint_has_ipv4(self, arp->sender_ip))
		return DROP(FILE_ARP, REASON_SOURCE_IP);
	/* An unsolicited reply, or the pod announces or probes its own address, which the node already knows. */
	if (arp->operation != bpf_htons(ARP_REQUEST) || endpoint_has_ipv4(self, arp->target_ip))
		return DROP(FILE_ARP, REASON_CONTROL_TRAFFIC);
	if (!self->gateway_ipv4 || arp->target_ip != self->gateway_ipv4)
		return DROP(FILE_ARP, REASON_NEIGHBOUR_TARGET);
	return CONTINUE;
}

/* arp_reply turns a request for the gateway into its reply, in place, and sends it back. */
static __always_inline verdict arp_reply(struct __sk_buff *skb, const struct endpoint_facts *self)
{
	void *head = packet_head(skb, ETH_HLEN + sizeof(struct arp_message));
	struct arp_message *arp;
	verdict v;

	if (!head)
		return DROP(FILE_ARP, REASON_TRUNCATED);
	arp = head + ETH_HLEN;
	v = arp_check(arp, self);
	if (v != CONTINUE)
		return v;
	arp->operation = bpf_htons(ARP_REPLY);
	mac_copy(arp->target_mac, self->pod_mac);
	arp->target_ip = arp->sender_ip;
	mac_copy(arp->sender_mac, self->host_mac);
	arp->sender_ip = self->gateway_ipv4;
	return deliver_reply(skb, self);
}
