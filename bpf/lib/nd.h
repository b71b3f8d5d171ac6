/* ICMPv6 that serves the link: neighbour solicitations for the gateway are answered, all other messages are dropped. */
#pragma once

#include <linux/bpf.h>
#include <linux/icmpv6.h>
#include <linux/if_ether.h>
#include <linux/in6.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "deliver.h"
#include "endpoint.h"
#include "ipv6.h"
#include "packet.h"
#include "reasons.h"

#define ND_HOP_LIMIT 255 /* proves that no router forwarded the message */
#define ND_FLAGS_REPLY 0xe0000000 /* from a router, solicited, override */
#define ND_FLAGS_DEFENCE 0xa0000000 /* the same, unsolicited: to a pod that probes for the gateway's address */
#define ND_OPTION_TARGET_MAC 2

#define ICMPV6_MLD_QUERY 130
#define ICMPV6_MLD_REPORT 131
#define ICMPV6_MLD_DONE 132
#define ICMPV6_ROUTER_SOLICITATION 133
#define ICMPV6_ROUTER_ADVERTISEMENT 134
#define ICMPV6_NEIGHBOUR_SOLICITATION 135
#define ICMPV6_NEIGHBOUR_ADVERTISEMENT 136
#define ICMPV6_REDIRECT 137
#define ICMPV6_INVERSE_SOLICITATION 141
#define ICMPV6_INVERSE_ADVERTISEMENT 142
#define ICMPV6_MLD2_REPORT 143
#define ICMPV6_CERT_SOLICITATION 148
#define ICMPV6_CERT_ADVERTISEMENT 149
#define ICMPV6_MULTICAST_ROUTER_FIRST 151
#define ICMPV6_MULTICAST_ROUTER_LAST 153

/* A solicitation or an advertisement, without options. */
struct nd_message {
	__u8 type;
	__u8 code;
	__be16 checksum;
	__be32 flags;
	struct in6_addr target;
};

struct nd_advertisement {
	struct nd_message message;
	__u8 option;
	__u8 option_length; /* in units of eight bytes */
	__u8 mac[ETH_ALEN];
};

struct nd_pseudo_header {
	struct in6_addr saddr;
	struct in6_addr daddr;
	__be32 length;
	__be32 protocol;
};

#define ND_OFFSET (ETH_HLEN + sizeof(struct ipv6hdr))
#define ND_REPLY_LENGTH (ND_OFFSET + sizeof(struct nd_advertisement))

static __always_inline __be16 nd_checksum(struct nd_pseudo_header *pseudo, struct nd_advertisement *answer)
{
	__u32 sum = bpf_csum_diff(NULL, 0, (__be32 *)pseudo, sizeof(*pseudo), 0);

	sum = bpf_csum_diff(NULL, 0, (__be32 *)answer, sizeof(*answer), sum);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* nd_reply turns a solicitation for the gateway into the requested advertisement, in place. */
static __always_inline verdict nd_reply(struct __sk_buff *skb, const struct endpoint_facts *self,
					 const struct ipv6_packet *request)
{
	struct nd_advertisement answer = {
		.message = { .type = ICMPV6_NEIGHBOUR_ADVERTISEMENT, .flags = bpf_htonl(ND_FLAGS_REPLY) },
		.option = ND_OPTION_TARGET_MAC,
		.option_length = 1,
	};
	struct nd_pseudo_header pseudo = {
		.daddr = request->saddr,
		.length = bpf_htonl(sizeof(answer)),
		.protocol = bpf_htonl(NEXT_ICMPV6),
	};
	struct ipv6hdr *ip;
	void *head;

	if (ipv6_is_unspecified(&request->saddr)) {
		pseudo.daddr = (struct in6_addr){ .s6_addr = { 0xff, 2, [15] = 1 } }; /* all nodes */
		answer.message.flags = bpf_htonl(ND_FLAGS_DEFENCE);
	}
	__builtin_memcpy(&pseudo.saddr, self->gateway_ipv6, sizeof(pseudo.saddr));
	answer.message.target = pseudo.saddr;
	mac_copy(answer.mac, self->host_mac);
	answer.message.checksum = nd_checksum(&pseudo, &answer);

	/* The request may have other options than the reply. */
	if (bpf_skb_change_tail(skb, ND_REPLY_LENGTH, 0))
		return DROP(FILE_ND, REASON_WRITE);
	head = packet_head(skb, ND_REPLY_LENGTH);
	if (!head)
		return DROP(FILE_ND, REASON_WRITE);
	ip = head + ETH_HLEN;
	ip->payload_len = bpf_htons(sizeof(answer));
	ip->saddr = pseudo.saddr;
	ip->daddr = pseudo.daddr;
	__builtin_memcpy(head + ND_OFFSET, &answer, sizeof(answer));
	return deliver_reply(skb, self);
}

/* nd_solicitation is a separate function, so that the verifier checks it once. */
__attribute__((noinline)) int nd_solicitation(struct __sk_buff *skb, const struct endpoint_facts *self, const struct ipv6_packet *packet)
{
	void *head = packet_head(skb, ND_OFFSET + sizeof(struct nd_message));
	struct nd_message *nd;
	int probe;

	if (!self || !packet)
		return DROP(FILE_ND, REASON_TRUNCATED);
	probe = ipv6_is_unspecified(&packet->saddr);
	if (packet->l4 != ND_OFFSET)
		return DROP(FILE_ND, REASON_FORBIDDEN_ICMPV6);
	if (!head)
		return DROP(FILE_ND, REASON_TRUNCATED);
	nd = head + ND_OFFSET;
	if (packet->hop_limit != ND_HOP_LIMIT || nd->code)
		return DROP(FILE_ND, REASON_MALFORMED);
	if (!probe && !ipv6_is_link_local(&packet->saddr) && !endpoint_has_ipv6(self, &packet->saddr))
		return DROP(FILE_ND, REASON_SOURCE_IP);
	if ((self->flags & ENDPOINT_IPV6) && ipv6_equal(&nd->target, self->gateway_ipv6))
		return nd_reply(skb, self, packet);
	if (probe && (ipv6_is_link_local(&nd->target) || endpoint_has_ipv6(self, &nd->target)))
		return DROP(FILE_ND, REASON_CONTROL_TRAFFIC);
	return DROP(FILE_ND, REASON_NEIGHBOUR_TARGET);
}

/* nd_evaluate evaluates the ICMPv6 types that concern only the link; they never leave it. STEP_NEIGHBOR means that the message is a neighbor solicitation,
 * CONTINUE that it is of another kind. */
static __always_inline verdict nd_evaluate(struct __sk_buff *skb, const struct ipv6_packet *packet)
{
	__u8 type;

	if (packet->protocol != NEXT_ICMPV6 || packet->fragment == FRAGMENT_LATER)
		return CONTINUE;
	if (bpf_skb_load_bytes(skb, packet->l4, &type, sizeof(type)))
		return DROP(FILE_ND, REASON_TRUNCATED);
	switch (type) {
	case ICMPV6_NEIGHBOUR_SOLICITATION:
		return STEP_NEIGHBOR;
	case ICMPV6_MLD_REPORT:
	case ICMPV6_MLD_DONE:
	case ICMPV6_MLD2_REPORT:
	case ICMPV6_ROUTER_SOLICITATION:
	case ICMPV6_NEIGHBOUR_ADVERTISEMENT: /* the node sends no solicitations */
		return DROP(FILE_ND, REASON_CONTROL_TRAFFIC);
	case ICMPV6_MLD_QUERY:
	case ICMPV6_ROUTER_ADVERTISEMENT:
	case ICMPV6_REDIRECT:
	case ICMPV6_INVERSE_SOLICITATION:
	case ICMPV6_INVERSE_ADVERTISEMENT:
	case ICMPV6_CERT_SOLICITATION:
	case ICMPV6_CERT_ADVERTISEMENT:
	case ICMPV6_MULTICAST_ROUTER_FIRST ... ICMPV6_MULTICAST_ROUTER_LAST:
		return DROP(FILE_ND, REASON_FORBIDDEN_ICMPV6);
	}
	return CONTINUE;
}

/* nd_from_host drops the node's own neighbour discovery and group reports, which a pod does not need. CONTINUE means that the message is of another
 * kind. */
static __always_inline verdict nd_from_host(struct __sk_buff *skb, const struct ipv6_packet *packet)
{
	__u8 type;

	if (packet->protocol != NEXT_ICMPV6 || packet->fragment == FRAGMENT_LATER)
		return CONTINUE;
	if (bpf_skb_load_bytes(skb, packet->l4, &type, sizeof(type)))
		return DROP(FILE_ND, REASON_TRUNCATED);
	if ((type >= ICMPV6_MLD_QUERY && type <= ICMPV6_REDIRECT) || type == ICMPV6_MLD2_REPORT)
		return DROP(FILE_ND, REASON_CONTROL_TRAFFIC);
	return CONTINUE;
}
