/* Creation of the two entries of a translated flow. */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "conntrack.h"
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

/* nat_create stores both entries of a new flow, from key and entry; it sets check and expires. Another CPU may create the same flow at the same time; then
 * entry becomes the entry of that CPU. It returns STEP_IN_USE when the packets of another flow already have the addresses and ports that the translation would
 * give. */
__attribute__((noinline)) int nat_create(__u32 family)
{
	struct nat_work *work = nat_work();
	int claimed, err;

	if (!work)
		return DROP(FILE_NAT_CREATE, REASON_CT_INSERT);
	if (nat_spent(&work->entry, family)) {
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
