/* The header behind the IP header, as far as flows and policies need it. */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "reasons.h"

#define PROTOCOL_ICMPV6 58

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

#define ICMP_LENGTH 8 /* of a request, and of an error without its inner packet */

/* The role of an ICMP message in a flow. */
enum l4_role {
	L4_PLAIN = 0,  /* not ICMP */
	L4_REQUEST = 1,   /* a request, or a message that has no reply */
	L4_REPLY = 2,
	L4_ERROR = 3,
};

struct l4 {
	__be16 sport; /* 0 when the protocol has no ports; an ICMP identifier is in both */
	__be16 dport;
	__u8 protocol;
	__u8 role;
	__u8 type;	/* ICMP: of the request, also in its reply */
	__u8 tcp_flags; /* 0 in later fragments */
};

static __always_inline int l4_is_icmp(__u8 protocol)
{
	return protocol == IPPROTO_ICMP || protocol == PROTOCOL_ICMPV6;
}

/* l4_icmpv4 distinguishes replies from requests, and stores the type of the request. Types without a reply count as requests. */
static __always_inline void l4_icmpv4(struct l4 *l4, __u8 type)
{
	l4->role = L4_REQUEST;
	l4->type = type;
	switch (type) {
	case 3:	 /* unreachable */
	case 4:	 /* source quench */
	case 11: /* time exceeded */
	case 12: /* parameter problem */
		l4->role = L4_ERROR;
		return;
	case 0: /* echo */
		l4->role = L4_REPLY;
		l4->type = 8;
		return;
	case 14: /* timestamp */
	case 16: /* information */
	case 18: /* address mask */
		l4->role = L4_REPLY;
		l4->type = type - 1;
	}
}

static __always_inline void l4_icmpv6(struct l4 *l4, __u8 type)
{
	l4->role = L4_REQUEST;
	l4->type = type;
	if (type < 128) {
		l4->role = L4_ERROR;
	} else if (type == 129) {
		l4->role = L4_REPLY;
		l4->type = 128;
	}
}

static __always_inline int l4_has_identifier(const struct l4 *l4)
{
	if (l4->protocol == PROTOCOL_ICMPV6)
		return l4->type == 128;
	return l4->type == 8 || l4->type == 13 || l4->type == 15 || l4->type == 17;
}

/* l4_read reads the header at an offset of a packet with the given end. The caller has set the protocol; other fields are 0. An inner packet of an ICMP error
 * may end after eight bytes. It is a separate function, so that the verifier checks it once. */
__attribute__((noinline)) int l4_read(struct __sk_buff *skb, __u32 at, __u32 end, int embedded, struct l4 *l4)
{
	union {
		struct {
			__u8 type;
			__u8 code;
			__be16 checksum;
			__be16 identifier;
			__be16 sequence;
		} icmp;
		struct {
			__be16 sport;
			__be16 dport;
			__u8 numbers[9];
			__u8 flags;
			__u8 rest[6];
		} tcp;
	} header;

	if (!l4)
		return DROP(FILE_L4, REASON_MALFORMED);
	switch (l4->protocol) {
	case IPPROTO_TCP:
		if (!embedded) {
			if (at + sizeof(header.tcp) > end || bpf_skb_load_bytes(skb, at, &header.tcp, sizeof(header.tcp)))
				return DROP(FILE_L4, REASON_TRUNCATED);
			l4->sport = header.tcp.sport;
			l4->dport = header.tcp.dport;
			l4->tcp_flags = header.tcp.flags;
			return CONTINUE;
		}
		/* fallthrough */
	case IPPROTO_UDP:
	case IPPROTO_UDPLITE:
	case IPPROTO_SCTP:
	case IPPROTO_ICMP:
	case PROTOCOL_ICMPV6:
		break;
	default:
		return CONTINUE;
	}
	if (at + sizeof(header.icmp) > end || bpf_skb_load_bytes(skb, at, &header, sizeof(header.icmp)))
		return DROP(FILE_L4, REASON_TRUNCATED);
	if (!l4_is_icmp(l4->protocol)) {
		l4->sport = header.tcp.sport;
		l4->dport = header.tcp.dport;
		return CONTINUE;
	}
	if (l4->protocol == IPPROTO_ICMP)
		l4_icmpv4(l4, header.icmp.type);
	else
		l4_icmpv6(l4, header.icmp.type);
	if (l4_has_identifier(l4))
		l4->sport = l4->dport = header.icmp.identifier;
	return CONTINUE;
}
