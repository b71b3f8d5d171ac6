/* Access to the bytes of a packet. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

/* Bytes of a packet before its IP header. Programs of devices that may have no link header (tunnels, WireGuard) define LINK_HEADER_VARIES, and their loader
 * sets 0 for such a device. */
#ifdef LINK_HEADER_VARIES
volatile const __u32 link_header = ETH_HLEN;
#else
#define link_header ETH_HLEN
#endif

#define FRAGMENT_NONE 0	 /* a whole datagram */
#define FRAGMENT_FIRST 1 /* the part with the upper header */
#define FRAGMENT_LATER 2

/* The kernel converts a 32-bit load of these two fields into a load of a pointer. The compiler, which knows only the 32 bits, tends to keep and widen the
 * value, and the verifier then sees a number; so the load is hidden from the compiler. */
#define PACKET_FIELD(skb, field)                                                                                     \
	({                                                                                                           \
		void *pointer;                                                                                       \
		asm volatile("%0 = *(u32 *)(%1 + %2)"                                                                \
			     : "=r"(pointer)                                                                         \
			     : "r"(skb), "i"(__builtin_offsetof(struct __sk_buff, field)));                          \
		pointer;                                                                                             \
	})

/* packet_head returns the first len bytes, readable and writable, or NULL when the packet is shorter. It pulls them into the linear part if necessary, so all
 * previous pointers into the packet are invalid afterwards. */
static __always_inline void *packet_head(struct __sk_buff *skb, __u32 len)
{
	void *data = PACKET_FIELD(skb, data);

	if (data + len <= PACKET_FIELD(skb, data_end))
		return data;
	if (bpf_skb_pull_data(skb, len))
		return NULL;
	data = PACKET_FIELD(skb, data);
	if (data + len <= PACKET_FIELD(skb, data_end))
		return data;
	return NULL;
}
