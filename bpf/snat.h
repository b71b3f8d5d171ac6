/* The ports under which flows leave this node, so that what comes back says whose it is. The node's own connections are entries as well. */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "conntrack.h"
#include "l4.h"
#include "nat.h"
#include "nat_create.h"
#include "reasons.h"

/* Ports above those of NodePort services. Below them nothing is given out, so nothing there has to be registered. */
volatile const __u32 nat_port_first = 32768;
volatile const __u32 nat_port_last = 65535;

/* How many ports are tried. With half of all ports towards one target taken one flow in four billion finds none, with nine of ten one in
 * thirty. */
#define SNAT_TRIES 32

static __always_inline int snat_in_range(__be16 port)
{
	return bpf_ntohs(port) >= nat_port_first && bpf_ntohs(port) <= nat_port_last;
}

/* snat_has_ports tells whether a packet of the protocol can be given another port. */
static __always_inline int snat_has_ports(__u8 protocol)
{
	return protocol == IPPROTO_TCP || protocol == IPPROTO_UDP || protocol == IPPROTO_UDPLITE || l4_is_icmp(protocol);
}

/* snat_create stores the flow that key and entry describe. It keeps its source port when nobody else has it; one that gets an address of
 * the node in place of its own must have it from the range, too. */
__attribute__((noinline)) int snat_create(__u32 family)
{
	struct nat_work *work = nat_work();
	verdict v = NAT_TAKEN;
	__u32 count;

	if (!work)
		return DROP(FILE_SNAT, REASON_CT_INSERT);
	if (!(work->entry.flags & (NAT_MASQUERADE | NAT_REDIRECT)) || !snat_has_ports(work->key.protocol) || snat_in_range(work->entry.sport))
		v = nat_create(family);
	count = nat_port_last - nat_port_first + 1;
	for (int i = 0; i < SNAT_TRIES && v == NAT_TAKEN && count && snat_has_ports(work->key.protocol); i++) {
		work->entry.sport = bpf_htons(nat_port_first + bpf_get_prandom_u32() % count);
		if (l4_is_icmp(work->key.protocol))
			work->entry.dport = work->entry.sport;
		v = nat_create(family);
	}
	if (v != NAT_TAKEN)
		return v;
	ct_signal(NAT_SIGNAL + family, work->entry.endpoint);
	return DROP(FILE_SNAT, REASON_NAT_NO_MAPPING);
}
