/* Translation of a packet by its entry. */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "conntrack.h"
#include "eth.h"
#include "ipv4.h"
#include "ipv6.h"
#include "l4.h"
#include "nat.h"
#include "reasons.h"

/* nat_pair writes two addresses side by side, as in a header. */
static __always_inline void nat_pair(__u8 *pair, const __u8 *source, const __u8 *destination, __u32 family)
{
	half_word *to = (half_word *)pair;
	const half_word *from = (const half_word *)source, *next = (const half_word *)destination;

	if (family == 6) {
		for (int i = 0; i < 4; i++) {
			to[i] = from[i];
			to[4 + i] = next[i];
		}
		return;
	}
	to[0] = *from;
	to[1] = *next;
}

/* nat_difference returns the checksum difference between the words of was and is. */
static __always_inline __s64 nat_difference(struct nat_work *work, __u32 family)
{
	if (family == 6)
		return bpf_csum_diff((__be32 *)work->was, 32, (__be32 *)work->is, 32, 0);
	return bpf_csum_diff((__be32 *)work->was, 8, (__be32 *)work->is, 8, 0);
}

/* nat_addresses writes the two addresses in is to the header at an offset. An IPv6 header has no checksum that compensates for them in a sum over the whole
 * packet, so the kernel adds the difference here; the update of the upper checksum subtracts it again. */
static __always_inline long nat_addresses(struct __sk_buff *skb, struct nat_work *work, __u32 at, __u32 family, __s64 difference, __u64 how)
{
	long err;

	if (family == 6)
		return bpf_skb_store_bytes(skb, at + __builtin_offsetof(struct ipv6hdr, saddr), work->is, 32, how);
	err = bpf_skb_store_bytes(skb, at + __builtin_offsetof(struct iphdr, saddr), work->is, 8, 0);
	return err | bpf_l3_csum_replace(skb, at + __builtin_offsetof(struct iphdr, check), 0, difference, 0);
}

/* nat_checksum returns the offset of the checksum in an upper header, in bits 8 to 15, and the flags for the helpers that update it, below; 0 is none. It is a
 * separate function: the verifier would check its callers once for each protocol. */
__attribute__((noinline)) int nat_checksum(__u32 protocol)
{
	switch (protocol) {
	case IPPROTO_TCP:
		return 16 << 8 | BPF_F_PSEUDO_HDR;
	case IPPROTO_UDP:
	case IPPROTO_UDPLITE:
		return 6 << 8 | BPF_F_PSEUDO_HDR | BPF_F_MARK_MANGLED_0; /* 0 says that there is none */
	case PROTOCOL_ICMPV6:
		return 2 << 8 | BPF_F_PSEUDO_HDR;
	case IPPROTO_ICMP:
		return 2 << 8;
	}
	return 0;
}

/* nat_rewrite replaces the addresses and ports in key by those in entry. at is the offset of the upper header, 0 when this part of a datagram has none. Errors
 * are combined: a packet with any failed write is dropped. */
__attribute__((noinline)) int nat_rewrite(struct __sk_buff *skb, __u32 family, __u32 at)
{
	struct nat_work *work = nat_work();
	__u32 checksum, ports;
	__be16 was[2], is[2];
	__s64 difference;
	__u64 how;
	long err;

	if (!work)
		return DROP(FILE_NAT_REWRITE, REASON_WRITE);
	was[0] = work->key.sport;
	was[1] = work->key.dport;
	is[0] = work->entry.sport;
	is[1] = work->entry.dport;
	how = nat_checksum(work->key.protocol);
	checksum = how >> 8 & 0xff;
	how &= 0xff;
	if (!checksum && (was[0] != is[0] || was[1] != is[1]))
		return DROP(FILE_NAT_REWRITE, REASON_SERVICE_PROTOCOL); /* the checksum of SCTP cannot be updated */
	nat_pair(work->was, work->key.saddr, work->key.daddr, family);
	nat_pair(work->is, work->entry.saddr, work->entry.daddr, family);
	difference = nat_difference(work, family);
	err = nat_addresses(skb, work, link_header, family, difference, BPF_F_RECOMPUTE_CSUM);
	if (at && checksum) {
		ports = l4_is_icmp(work->key.protocol) ? 2 : 4;
		if (how)
			err |= bpf_l4_csum_replace(skb, at + checksum, 0, difference, how);
		how &= BPF_F_MARK_MANGLED_0;
		if (ports == 4) {
			err |= bpf_l4_csum_replace(skb, at + checksum, *(half_word *)was, *(half_word *)is, how | 4);
			err |= bpf_skb_store_bytes(skb, at, is, 4, 0);
		} else {
			err |= bpf_l4_csum_replace(skb, at + checksum, was[0], is[0], 2);
			err |= bpf_skb_store_bytes(skb, at + 4, is, 2, 0);
		}
	}
	return err ? DROP(FILE_NAT_REWRITE, REASON_WRITE) : CONTINUE;
}
