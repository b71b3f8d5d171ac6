/* Creation of the two entries of a translated flow. */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "conntrack.h"
#include "l4.h"
#include "nat.h"
#include "nat_share.h"
#include "reasons.h"

/* nat_not_stored returns the drop for a flow that cannot be stored. */
static __always_inline verdict nat_not_stored(const struct nat_work *work, __u32 family, int err)
{
	if (err != -ERRNO_TOO_BIG && err != -ERRNO_NO_MEMORY)
		return DROP(FILE_NAT_CREATE, REASON_CT_INSERT);
	ct_signal(NAT_SIGNAL + family, work->entry.endpoint);
	return DROP(FILE_NAT_CREATE, REASON_NAT_FULL);
}

/* Results of nat_claim. */
#define NAT_CLAIMED 0
#define NAT_SHARED 1 /* another CPU stored it for the same flow, or it is left from a previous flow between the same ends and is reused */

/* nat_claim stores the reverse entry, and replaces one of an expired flow. On failure it returns the error of the kernel. */
__attribute__((noinline)) int nat_claim(__u32 family)
{
	struct nat_work *work = nat_work();
	int err = nat_store(family, NAT_REVERSE, BPF_NOEXIST);

	if (!work || err != -ERRNO_EXIST)
		return err;
	work->other = work->reverse;
	if (!nat_load(family, NAT_OTHER))
		return err;
	if (nat_same(&work->found, &work->reply)) {
		err = nat_store(family, NAT_REVERSE, BPF_ANY);
		return err ? err : NAT_SHARED;
	}
	if (!nat_expired(&work->found, ct_now()))
		return err;
	nat_reverse_key(&work->other, &work->found, work->reverse.protocol);
	if (nat_load(family, NAT_OTHER) && !nat_expired(&work->found, ct_now()))
		return err;
	nat_delete(family, NAT_OTHER);
	work->other = work->reverse; /* with the stored entry: it may count for an endpoint */
	if (nat_load(family, NAT_OTHER))
		nat_delete(family, NAT_OTHER);
	return nat_store(family, NAT_REVERSE, BPF_NOEXIST);
}

/* nat_has_ports reports whether the port of a packet of the protocol can be changed. */
static __always_inline int nat_has_ports(__u8 protocol)
{
	return protocol == IPPROTO_TCP || protocol == IPPROTO_UDP || protocol == IPPROTO_UDPLITE || l4_is_icmp(protocol);
}

/* Number of groups of odd ports, see nat_is_reserved. */
#define NAT_PORT_GROUPS 128

/* nat_is_reserved reports whether a pod beyond its guaranteed flows may not use the source port of the entry. Pods that could use all ports towards a destination
 * would lock out other pods and the node. So they get the even ports, which connect() of Linux prefers, and one group of the odd ones. */
static __always_inline int nat_is_reserved(const struct nat_work *work)
{
	__u32 port = bpf_ntohs(work->entry.sport);

	return (work->entry.flags & NAT_MASQUERADE) && nat_has_ports(work->key.protocol) && (port & 1) &&
	       (port / 2 ^ work->entry.endpoint) % NAT_PORT_GROUPS;
}

/* nat_create stores both entries of a new flow, from key and entry; it sets check and expires. Another CPU may create the same flow at the same time; then
 * entry becomes the entry of that CPU. It returns STEP_IN_USE when the packets of another flow already have the addresses and ports that the translation would
 * give, or when the source port is reserved for others. */
__attribute__((noinline)) int nat_create(__u32 family)
{
	struct nat_work *work = nat_work();
	int claimed, err, room;

	if (!work)
		return DROP(FILE_NAT_CREATE, REASON_CT_INSERT);
	room = nat_room(&work->entry, family);
	if (room == NAT_ROOM_BEYOND && nat_is_reserved(work))
		return STEP_IN_USE;
	if (room == NAT_ROOM_NONE) {
		ct_signal(NAT_SHARE_SIGNAL + family, work->entry.endpoint);
		return DROP(FILE_NAT_CREATE, REASON_NAT_SHARE);
	}
	work->entry.expires = ct_now() + (work->key.protocol == IPPROTO_TCP ? ct_tcp_syn_timeout : ct_any_timeout);
	nat_reverse_key(&work->reverse, &work->entry, work->key.protocol);
	nat_mirror(work);
	claimed = nat_claim(family);
	if (claimed < 0)
		return claimed == -ERRNO_EXIST ? STEP_IN_USE : nat_not_stored(work, family, claimed);
	err = nat_store(family, NAT_OWN, BPF_NOEXIST);
	if (!err) {
		nat_charge(&work->entry, family);
		return CONTINUE;
	}
	work->other = work->key;
	if (err != -ERRNO_EXIST || !nat_load(family, NAT_OTHER)) {
		if (claimed == NAT_CLAIMED)
			nat_delete(family, NAT_REVERSE);
		return nat_not_stored(work, family, err);
	}
	if (claimed == NAT_CLAIMED && !nat_same(&work->found, &work->entry))
		nat_delete(family, NAT_REVERSE);
	work->entry = work->found;
	return CONTINUE;
}
