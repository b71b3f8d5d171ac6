/* What a program leaves in a packet for the programs after it: the packet mark, by which the node recognizes packets that Waggle's programs have evaluated, and
 * tc_index. */
#pragma once

#include <linux/types.h>
#include "protocol.h"

/* Value of tc_index in a packet that netdev_egress need not look up, because it translates no packets of the flow: one that pod_egress sends past the stack, or
 * one of the tunnel. A process in a pod can set the field as well, but the kernel resets it for each packet that pod_egress passes to the stack (TC_ACT_OK of
 * a classifier, net/core/dev.c). */
#define MARK_UNTRANSLATED 0x5744

#define MARK_MAGIC_IDENTITY 0x0f00
#define MARK_MASK 0x0f00

/* mark_of encodes an identity in Cilium's layout: its low 16 bits at the top, its high 8 bits at the bottom. Another layout, or another magic number, would be
 * another protocol, which protocol_written() selects here. */
static __always_inline __u32 mark_of(__u32 identity)
{
	return ((identity & 0xffff) << 16) | ((identity >> 16) & 0xff) | MARK_MAGIC_IDENTITY;
}

/* mark_identity returns the identity in a mark of Waggle's programs; 0 when another program has changed the mark. Bits 12 to 15 belong to other programs. */
static __always_inline __u32 mark_identity(__u32 mark)
{
	return (mark & MARK_MASK) == MARK_MAGIC_IDENTITY ? mark >> 16 | (mark & 0xff) << 16 : 0;
}
