/* Translation of an ICMP error by its inner packet. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "conntrack.h"
#include "eth.h"
#include "l4.h"
#include "nat.h"
#include "nat_rewrite.h"
#include "reasons.h"

/* nat_word replaces 16 bits inside an ICMP message, whose own checksum is at another offset. */
__attribute__((noinline)) int nat_word(struct __sk_buff *skb, __u32 at, __u32 was, __u32 now, __u32 checksum)
{
	__be16 is = now;
	long err = bpf_l4_csum_replace(skb, checksum, (__u16)was, is, 2);

	return err | bpf_skb_store_bytes(skb, at, &is, sizeof(is), 0);
}

/* nat_inner replaces the ports in the inner upper header of an ICMP error, and updates its checksum if the inner packet includes it. */
__attribute__((noinline)) int nat_inner(struct __sk_buff *skb, __u32 at, __u32 end, __s64 difference, __u32 checksum)
{
	struct nat_work *work = nat_work();
	__u32 own, how, sum, is_icmp;
	__be16 old = 0;
	int err;

	if (!work)
		return -1;
	how = nat_checksum(work->key.protocol);
	if (!how)
		return work->key.sport != work->entry.sport || work->key.dport != work->entry.dport;
	own = at + (how >> 8 & 0xff);
	if (own + sizeof(old) > end || bpf_skb_load_bytes(skb, own, &old, sizeof(old)))
		own = 0;
	sum = (__u16)~old + ((__u32)(difference & 0xffff) + ((__u32)difference >> 16)) * !!(how & BPF_F_PSEUDO_HDR);
	sum += (__u16)~work->key.dport + work->entry.dport;
	is_icmp = l4_is_icmp(work->key.protocol);
	err = nat_word(skb, at + 4 * is_icmp, work->key.dport, work->entry.dport, checksum);
	if (!is_icmp) {
		sum += (__u16)~work->key.sport + work->entry.sport;
		err |= nat_word(skb, at + 2, work->key.sport, work->entry.sport, checksum);
	}
	how &= BPF_F_MARK_MANGLED_0;
	if (!own || (!old && how))
		return err;
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (__u16)~sum;
	if (!sum && how)
		sum = 0xffff;
	return err | nat_word(skb, own, old, sum, checksum);
}

/* nat_rewrite_error translates an ICMP error by its inner IP header, at one offset, and its inner upper header, at another. The error has the direction of key,
 * so the inner packet has the addresses and ports of key exchanged. A router may have sent the error: the source address of the error changes only if it is an
 * end of the flow. */
__attribute__((noinline)) int nat_rewrite_error(struct __sk_buff *skb, __u32 family, __u32 inner_at, __u32 upper, __u32 end)
{
	__u32 checksum = inner_at - ICMP_LENGTH + 2, size = family == 6 ? 32 : 8;
	struct nat_work *work = nat_work();
	__s64 difference;
	int same;
	long err;

	if (!work)
		return DROP(FILE_NAT_ERROR, REASON_WRITE);
	nat_pair(work->was, work->key.daddr, work->key.saddr, family);
	nat_pair(work->is, work->entry.daddr, work->entry.saddr, family);
	difference = nat_difference(work, family);
	/* In IPv4 the checksum of the inner header compensates for its addresses. */
	err = nat_addresses(skb, work, inner_at, family, difference, 0);
	if (family == 6)
		err |= bpf_l4_csum_replace(skb, checksum, 0, difference, 0);
	err |= nat_inner(skb, upper, end, difference, checksum);

	err |= bpf_skb_load_bytes(skb, link_header + (family == 6 ? 8 : 12), work->was, size);
	if (family == 6)
		same = !((word_at(work->was) ^ word_at(work->key.saddr)) | (word_at(work->was + 8) ^ word_at(work->key.saddr + 8)));
	else
		same = *(half_word *)work->was == *(half_word *)work->key.saddr;
	nat_pair(work->is, same ? work->entry.saddr : work->was, work->entry.daddr, family);
	difference = nat_difference(work, family);
	err |= nat_addresses(skb, work, link_header, family, difference, BPF_F_RECOMPUTE_CSUM);
	if (family == 6)
		err |= bpf_l4_csum_replace(skb, checksum, 0, difference, BPF_F_PSEUDO_HDR);
	return err ? DROP(FILE_NAT_ERROR, REASON_WRITE) : CONTINUE;
}
