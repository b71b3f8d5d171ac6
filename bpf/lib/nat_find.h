/* Look-up of the entry of a translated flow, and updates of its timeout by packets. */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "conntrack.h"
#include "l4.h"
#include "nat.h"
#include "resize.h"

/* nat_is_reverse reports whether the reverse entry of the work translates to the packet of its key. */
static __always_inline int nat_is_reverse(const struct nat_work *work)
{
	__u64 differ = (work->reply.sport ^ work->key.dport) | (work->reply.dport ^ work->key.sport) | (work->reply.reverse ^ work->key.place);

	for (int i = 0; i < 16; i += 8)
		differ |= (word_at(work->reply.saddr + i) ^ word_at(work->key.daddr + i)) |
			  (word_at(work->reply.daddr + i) ^ word_at(work->key.saddr + i));
	return !differ;
}

/* nat_closed returns a value other than 0 when the flags of both directions say that a connection is closed. */
static __always_inline __u32 nat_closed(__u32 own, __u32 reverse) { return ((own | reverse) & NAT_SENDER_RESET) | (own & reverse & NAT_SENDER_FIN); }

/* nat_reopens reports whether a SYN initiates a connection again that is closed by the flags of both directions. A SYN-ACK on a connection whose entries say
 * that it is closed belongs to a connection that was not translated. */
__attribute__((noinline)) int nat_reopens(__u32 tcp_flags, __u32 own, __u32 reverse)
{
	return (tcp_flags & TCP_SYN) && (tcp_flags & TCP_ACK ? nat_closed(own, reverse) : (own | reverse) & NAT_SENDER_CLOSING);
}

/* nat_restore stores the missing entry of the replies to a flow. It returns 0 on failure, because another flow uses the port now or the map is full. The
 * collector may delete the entry while a packet of the initiator recreates the flow. */
__attribute__((noinline)) int nat_restore(__u32 family)
{
	struct nat_work *work = nat_work();

	if (!work)
		return 0;
	nat_mirror(work);
	work->reply.expires = ct_now() + ct_any_timeout;
	if (!nat_store(family, NAT_REVERSE, BPF_NOEXIST))
		return 1;
	work->other = work->reverse;
	return nat_load(family, NAT_OTHER) && nat_same(&work->found, &work->reply);
}

static __always_inline void nat_renew_in(void *own, __u32 check, const struct nat_entry6 *entry, const __u32 family, __u32 flags)
{
	struct nat_head *head = own;

	if (!head || head->check != check || (flags == entry->flags && nat_rest(own, family)->flags != flags))
		return;
	head->expires = entry->expires;
	if (flags != entry->flags)
		nat_rest(own, family)->flags = entry->flags;
}

/* nat_renew writes the timeout of the entry of the work to the map, and its flags if this packet changed them. A packet of the same sender on another CPU may
 * have recorded the end of the connection meanwhile: then a packet that changes no flag changes nothing. */
__attribute__((noinline)) int nat_renew(__u32 family, __u32 flags)
{
	struct nat_work *work = nat_work();
	__u32 check;

	if (!work)
		return 0;
	if (family == 6) {
		nat_renew_in(resize_lookup(RESIZE_NAT6, &nat6, &nat6_previous, &work->key), nat_check6(&work->key), &work->entry, 6, flags);
		return 1;
	}
	check = nat_check4(&work->key4, &work->key);
	nat_renew_in(resize_lookup(RESIZE_NAT4, &nat4, &nat4_previous, &work->key4), check, &work->entry, 4, flags);
	return 1;
}

/* nat_follow is nat_find for packets that may concern both directions, or whose own entry has expired, and for one packet of the initiator in each tick. The
 * caller has loaded the entry. */
__attribute__((noinline)) int nat_follow(__u32 family, __u32 tcp_flags)
{
	struct nat_work *work = nat_work();
	__u32 now = ct_now(), other = 0, flags, before, timeout = ct_any_timeout;
	int active, is_reverse;

	if (!work)
		return 0;
	flags = before = work->entry.flags;
	active = !nat_expired(&work->entry, now);
	nat_reverse_key(&work->reverse, &work->entry, work->key.protocol);
	is_reverse = nat_load(family, NAT_REVERSE) && nat_is_reverse(work);
	if (is_reverse) {
		other = work->reply.flags;
		active |= !nat_expired(&work->reply, now);
	} else if (active && !(flags & NAT_REPLY)) {
		is_reverse = active = nat_restore(family);
	}
	if (nat_reopens(tcp_flags, flags, other))
		active = 0;
	if (!active) {
		if (is_reverse)
			nat_delete(family, NAT_REVERSE);
		nat_delete(family, NAT_OWN);
		return 0;
	}
	if (work->key.protocol == IPPROTO_TCP) {
		if (tcp_flags & TCP_FIN)
			flags |= NAT_SENDER_FIN;
		flags &= ~NAT_SENDER_RESET; /* as ct_advance does it */
		if (tcp_flags & TCP_RST)
			flags |= NAT_SENDER_RESET;
		if (!(tcp_flags & TCP_SYN))
			flags |= NAT_SENDER_ESTABLISHED;
		timeout = flags & NAT_SENDER_ESTABLISHED ? ct_tcp_timeout : ct_tcp_syn_timeout;
		if (nat_closed(flags, other)) {
			timeout = ct_tcp_close_timeout;
			work->reply.expires = now + timeout;
			if (other)
				nat_store(family, NAT_REVERSE, BPF_EXIST);
		}
	}
	work->entry.flags = flags;
	work->entry.expires = now + timeout;
	nat_renew(family, before);
	return 1;
}

/* nat_quickly refreshes an entry if the packet changes nothing else about its flow. 0 means that the packet may do so, or is the first of the initiator in this
 * tick. */
static __always_inline int nat_quickly(struct nat_head *own, __u32 flags, __u8 protocol, __u32 tcp_flags)
{
	__u32 now = ct_now(), expires = now + ct_any_timeout;
	__s32 left = own->expires - now, least = 0;

	if (protocol == IPPROTO_TCP) {
		if ((tcp_flags & (TCP_SYN | TCP_FIN | TCP_RST)) ||
		    (flags & (NAT_SENDER_CLOSING | NAT_SENDER_ESTABLISHED)) != NAT_SENDER_ESTABLISHED)
			return 0;
		expires = now + ct_tcp_timeout;
		least = ct_tcp_close_timeout; /* no more is left once the other direction has noticed the end */
	}
	if (left <= least)
		return 0;
	if (own->expires == expires)
		return 1;
	if (!(flags & NAT_REPLY))
		return 0;
	own->expires = expires;
	return 1;
}

__attribute__((noinline)) int nat_find4(__u32 tcp_flags)
{
	struct nat_work *work = nat_work();
	struct nat_entry4 *own;
	__u32 check;

	if (!work)
		return 0;
	check = nat_check4(&work->key4, &work->key);
	own = resize_lookup(RESIZE_NAT4, &nat4, &nat4_previous, &work->key4);
	if (!own || own->check != check)
		return 0;
	nat_read4(&work->entry, own);
	return nat_quickly((struct nat_head *)own, own->flags, work->key.protocol, tcp_flags) || nat_follow(4, tcp_flags);
}

__attribute__((noinline)) int nat_find6(__u32 tcp_flags)
{
	struct nat_work *work = nat_work();
	struct nat_entry6 *own;

	if (!work)
		return 0;
	own = resize_lookup(RESIZE_NAT6, &nat6, &nat6_previous, &work->key);
	if (!own || own->check != nat_check6(&work->key))
		return 0;
	work->entry = *own;
	return nat_quickly((struct nat_head *)own, own->flags, work->key.protocol, tcp_flags) || nat_follow(6, tcp_flags);
}

/* nat_find looks up the key, copies the translated packet into entry and updates the flow. It returns 1 when there is an entry, 0 when there is none or the
 * flow has expired; nat_find deletes the entries of such a flow. */
static __always_inline int nat_find(__u32 family, __u32 tcp_flags)
{
	return family == 6 ? nat_find6(tcp_flags) : nat_find4(tcp_flags);
}

/* nat_peek is nat_find for ICMP errors, which do not affect the timeout of a flow. */
__attribute__((noinline)) int nat_peek(__u32 family)
{
	struct nat_work *work = nat_work();

	if (!work || !nat_load(family, NAT_OWN))
		return 0;
	if (!nat_expired(&work->entry, ct_now()))
		return 1;
	nat_reverse_key(&work->reverse, &work->entry, work->key.protocol);
	return nat_load(family, NAT_REVERSE) && !nat_expired(&work->reply, ct_now());
}
