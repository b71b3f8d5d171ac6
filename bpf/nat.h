/* Translating packets: finding and making the entries of translated flows, and giving packets other ends. What works on a map stands in a
 * function for each family, as the verifier does not keep apart which of the maps memory belongs to; all functions are real ones, so that it
 * walks through each once. */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "conntrack.h"
#include "endpoint.h"
#include "ipv4.h"
#include "ipv6.h"
#include "l4.h"
#include "nat_maps.h"
#include "reasons.h"
#include "service.h"

/* A translation under way. It stands in a map of its own because no stack has room for it; programs on the path of packets are not
 * interrupted by others on the same CPU. An IPv4 address takes the first four bytes of its field, the others are 0. */
struct nat_work {
	struct nat_key6 key;	 /* a packet as it comes to a place */
	struct nat_entry6 entry; /* what it becomes */
	/* For the functions below, each key with its entry. */
	struct nat_key6 twin;
	struct nat_entry6 reply;
	struct nat_key6 other;
	struct nat_entry6 found;
	struct nat_key4 key4;
	struct nat_entry4 entry4;
	__u8 was[32] __attribute__((aligned(8))); /* two addresses of a header, an IPv4 address takes four bytes */
	__u8 is[32] __attribute__((aligned(8)));
	/* For whoever looks for a service. */
	struct choice choice;
	/* For whoever looks into an ICMP error: its own ends. */
	struct addr_key from;
	struct addr_key to;
	struct l4 l4;
};

/* Which key and entry of the work. */
#define NAT_OWN 0
#define NAT_TWIN 1
#define NAT_OTHER 2

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct nat_work);
} nat_works SEC(".maps");

static __always_inline struct nat_work *nat_work(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&nat_works, &zero);
}

/* How entries of both families begin, and how they go on after the addresses. */
struct nat_head {
	__u32 check;
	__u32 expires;
};

struct nat_rest {
	__be16 sport;
	__be16 dport;
	enum nat_place twin;
	enum nat_flag flags;
	__u32 service;
	__u32 backend;
	__u32 endpoint;
};
_Static_assert(sizeof(struct nat_entry4) == sizeof(struct nat_head) + 8 + sizeof(struct nat_rest) &&
		       sizeof(struct nat_entry6) == sizeof(struct nat_head) + 32 + sizeof(struct nat_rest),
	       "entries of both families differ in their addresses only");

#define NAT_SENDER_CLOSING (NAT_SENDER_FIN | NAT_SENDER_RESET)

static __always_inline struct nat_rest *nat_rest(void *entry, __u32 family)
{
	return entry + sizeof(struct nat_head) + (family == 6 ? 32 : 8);
}

static __always_inline int nat_expired(const void *entry, __u32 now)
{
	return (__s32)(((const struct nat_head *)entry)->expires - now) <= 0;
}

/* nat_key puts the ends of a packet into the key. */
static __always_inline void nat_key(struct nat_work *work, const struct addr_key *from, const struct addr_key *to, __be16 sport, __be16 dport,
				    __u8 protocol, enum nat_place place)
{
	__builtin_memcpy(work->key.saddr, from->addr, sizeof(work->key.saddr));
	__builtin_memcpy(work->key.daddr, to->addr, sizeof(work->key.daddr));
	work->key.sport = sport;
	work->key.dport = dport;
	work->key.protocol = protocol;
	work->key.place = place;
	work->key.pad[0] = work->key.pad[1] = 0;
}

/* What both families do the same way with a map: which says with what key and entry. */
struct nat_slot {
	struct nat_key6 key;
	struct nat_entry6 entry;
};
_Static_assert(__builtin_offsetof(struct nat_work, twin) == sizeof(struct nat_slot) &&
		       __builtin_offsetof(struct nat_work, other) == 2 * sizeof(struct nat_slot),
	       "slots are reached by an index");

static __always_inline struct nat_slot *nat_slot(struct nat_work *work, __u32 which)
{
	if (!work || which > NAT_OTHER)
		return NULL;
	return (void *)work + which * sizeof(struct nat_slot);
}

/* nat_check4 makes the key of nat4, and its check. */
static __always_inline __u32 nat_check4(struct nat_key4 *key4, const struct nat_key6 *key)
{
	key4->saddr = *(const half_word *)key->saddr;
	key4->daddr = *(const half_word *)key->daddr;
	key4->sport = key->sport;
	key4->dport = key->dport;
	key4->protocol = key->protocol;
	key4->place = key->place;
	key4->pad[0] = key4->pad[1] = 0;
	return ct_check(key4, sizeof(*key4) / 8);
}

static __always_inline __u32 nat_check6(const struct nat_key6 *key) { return ct_check(key, sizeof(*key) / 8); }

static __always_inline void nat_read4(struct nat_entry6 *to, const struct nat_entry4 *from)
{
	*to = (struct nat_entry6){ .check = from->check, .expires = from->expires };
	*(half_word *)to->saddr = from->saddr;
	*(half_word *)to->daddr = from->daddr;
	*nat_rest(to, 6) = *nat_rest((void *)from, 4);
}

/* nat_load copies the entry of a key, and says whether there is one; memory that serves another one by now is none. */
__attribute__((noinline)) int nat_load4(__u32 which)
{
	struct nat_work *work = nat_work();
	struct nat_slot *slot = nat_slot(work, which);
	struct nat_entry4 *entry;
	__u32 check;

	if (!slot)
		return 0;
	check = nat_check4(&work->key4, &slot->key);
	if (!(entry = bpf_map_lookup_elem(&nat4, &work->key4)))
		return 0;
	nat_read4(&slot->entry, entry);
	return slot->entry.check == check;
}

__attribute__((noinline)) int nat_load6(__u32 which)
{
	struct nat_slot *slot = nat_slot(nat_work(), which);
	struct nat_entry6 *entry;

	if (!slot || !(entry = bpf_map_lookup_elem(&nat6, &slot->key)))
		return 0;
	slot->entry = *entry;
	return slot->entry.check == nat_check6(&slot->key);
}

static __always_inline int nat_load(__u32 family, __u32 which) { return family == 6 ? nat_load6(which) : nat_load4(which); }

/* nat_store writes an entry with its check. */
__attribute__((noinline)) int nat_store4(__u32 which, __u64 how)
{
	struct nat_work *work = nat_work();
	struct nat_slot *slot = nat_slot(work, which);

	if (!slot)
		return -ERRNO_NO_MEMORY;
	work->entry4.check = nat_check4(&work->key4, &slot->key);
	work->entry4.expires = slot->entry.expires;
	work->entry4.saddr = *(half_word *)slot->entry.saddr;
	work->entry4.daddr = *(half_word *)slot->entry.daddr;
	*nat_rest(&work->entry4, 4) = *nat_rest(&slot->entry, 6);
	return bpf_map_update_elem(&nat4, &work->key4, &work->entry4, how);
}

__attribute__((noinline)) int nat_store6(__u32 which, __u64 how)
{
	struct nat_slot *slot = nat_slot(nat_work(), which);

	if (!slot)
		return -ERRNO_NO_MEMORY;
	slot->entry.check = nat_check6(&slot->key);
	return bpf_map_update_elem(&nat6, &slot->key, &slot->entry, how);
}

static __always_inline int nat_store(__u32 family, __u32 which, __u64 how)
{
	return family == 6 ? nat_store6(which, how) : nat_store4(which, how);
}

__attribute__((noinline)) int nat_delete(__u32 family, __u32 which)
{
	struct nat_work *work = nat_work();
	struct nat_slot *slot = nat_slot(work, which);

	if (!slot)
		return 0;
	if (family == 6)
		return bpf_map_delete_elem(&nat6, &slot->key);
	nat_check4(&work->key4, &slot->key);
	return bpf_map_delete_elem(&nat4, &work->key4);
}

/* nat_twin_key makes the key of the other direction. */
static __always_inline void nat_twin_key(struct nat_key6 *twin, const struct nat_entry6 *entry, __u8 protocol)
{
	__builtin_memcpy(twin->saddr, entry->daddr, sizeof(twin->saddr));
	__builtin_memcpy(twin->daddr, entry->saddr, sizeof(twin->daddr));
	twin->sport = entry->dport;
	twin->dport = entry->sport;
	twin->protocol = protocol;
	twin->place = entry->twin;
	twin->pad[0] = twin->pad[1] = 0;
}

/* nat_forget deletes both entries of the flow that key and entry are of. */
__attribute__((noinline)) int nat_forget(__u32 family)
{
	struct nat_work *work = nat_work();

	if (!work)
		return 0;
	nat_twin_key(&work->twin, &work->entry, work->key.protocol);
	nat_delete(family, NAT_TWIN);
	return nat_delete(family, NAT_OWN);
}

/* nat_closed tells from the flags of both directions whether a connection has ended. */
static __always_inline int nat_closed(__u32 own, __u32 twin)
{
	return ((own | twin) & NAT_SENDER_RESET) || (own & twin & NAT_SENDER_FIN);
}

/* nat_follow is nat_find for packets that say something about both directions, or whose own one has expired. The entry was loaded. */
__attribute__((noinline)) int nat_follow(__u32 family, __u32 tcp_flags)
{
	struct nat_work *work = nat_work();
	__u32 now = ct_now(), other = 0, flags, timeout = ct_any_timeout;
	int lives;

	if (!work)
		return 0;
	flags = work->entry.flags;
	lives = !nat_expired(&work->entry, now);
	nat_twin_key(&work->twin, &work->entry, work->key.protocol);
	if (nat_load(family, NAT_TWIN)) {
		other = work->reply.flags;
		lives |= !nat_expired(&work->reply, now);
	}
	if ((tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN && ((flags | other) & NAT_SENDER_CLOSING))
		lives = 0;
	if (!lives) {
		nat_forget(family);
		return 0;
	}
	if (work->key.protocol == IPPROTO_TCP) {
		if (tcp_flags & TCP_FIN)
			flags |= NAT_SENDER_FIN;
		if (tcp_flags & TCP_RST)
			flags |= NAT_SENDER_RESET;
		if (!(tcp_flags & TCP_SYN))
			flags |= NAT_SENDER_STANDS;
		timeout = flags & NAT_SENDER_STANDS ? ct_tcp_timeout : ct_tcp_syn_timeout;
		if (nat_closed(flags, other)) {
			timeout = ct_tcp_close_timeout;
			work->reply.expires = now + timeout;
			if (other)
				nat_store(family, NAT_TWIN, BPF_EXIST);
		}
	}
	work->entry.flags = flags;
	work->entry.expires = now + timeout;
	nat_store(family, NAT_OWN, BPF_EXIST);
	return 1;
}

/* nat_quickly refreshes an entry about whose flow a packet says nothing new; 0 means that it may. */
static __always_inline int nat_quickly(struct nat_head *own, __u32 flags, __u8 protocol, __u32 tcp_flags)
{
	__u32 now = ct_now(), expires = now + ct_any_timeout;
	__s32 left = own->expires - now, least = 0;

	if (protocol == IPPROTO_TCP) {
		if ((tcp_flags & (TCP_SYN | TCP_FIN | TCP_RST)) ||
		    (flags & (NAT_SENDER_CLOSING | NAT_SENDER_STANDS)) != NAT_SENDER_STANDS)
			return 0;
		expires = now + ct_tcp_timeout;
		least = ct_tcp_close_timeout; /* no more is left once the other direction has noticed the end */
	}
	if (left <= least)
		return 0;
	if (own->expires != expires)
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
	own = bpf_map_lookup_elem(&nat4, &work->key4);
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
	own = bpf_map_lookup_elem(&nat6, &work->key);
	if (!own || own->check != nat_check6(&work->key))
		return 0;
	work->entry = *own;
	return nat_quickly((struct nat_head *)own, own->flags, work->key.protocol, tcp_flags) || nat_follow(6, tcp_flags);
}

/* nat_find looks for the key, copies what it becomes into entry and notes what a packet says about its flow. It returns 1 when there is
 * an entry, 0 when there is none or the flow is over; the entries of such a flow are gone then. */
static __always_inline int nat_find(__u32 family, __u32 tcp_flags)
{
	return family == 6 ? nat_find6(tcp_flags) : nat_find4(tcp_flags);
}

/* nat_peek is nat_find for ICMP errors, which tell nothing about how long a flow lasts. */
__attribute__((noinline)) int nat_peek(__u32 family)
{
	struct nat_work *work = nat_work();

	if (!work || !nat_load(family, NAT_OWN))
		return 0;
	if (!nat_expired(&work->entry, ct_now()))
		return 1;
	nat_twin_key(&work->twin, &work->entry, work->key.protocol);
	return nat_load(family, NAT_TWIN) && !nat_expired(&work->reply, ct_now());
}

/* nat_same tells whether two entries make the same of a packet. */
static __always_inline int nat_same(const struct nat_entry6 *a, const struct nat_entry6 *b)
{
	__u64 differ = (a->sport ^ b->sport) | (a->dport ^ b->dport) | (a->twin ^ b->twin);

	for (int i = 0; i < 16; i += 8)
		differ |= (word_at(a->saddr + i) ^ word_at(b->saddr + i)) | (word_at(a->daddr + i) ^ word_at(b->daddr + i));
	return !differ;
}

#define NAT_TAKEN 1 /* another flow has what this one would become */

/* nat_refused says why a flow cannot be stored. */
static __always_inline verdict nat_refused(const struct nat_work *work, __u32 family, int err)
{
	if (err != -ERRNO_TOO_BIG && err != -ERRNO_NO_MEMORY)
		return DROP(FILE_NAT, REASON_CT_INSERT);
	ct_signal(NAT_SIGNAL + family, work->entry.endpoint);
	return DROP(FILE_NAT, REASON_NAT_FULL);
}

/* What nat_claim says. */
#define NAT_CLAIMED 0
#define NAT_SHARED 1 /* another CPU did so for the same flow */

/* nat_claim stores the twin, in place of one whose flow is over. It returns what the kernel said when it cannot. */
__attribute__((noinline)) int nat_claim(__u32 family)
{
	struct nat_work *work = nat_work();
	int err = nat_store(family, NAT_TWIN, BPF_NOEXIST);

	if (!work || err != -ERRNO_EXIST)
		return err;
	work->other = work->twin;
	if (!nat_load(family, NAT_OTHER))
		return err;
	if (nat_same(&work->found, &work->reply))
		return NAT_SHARED;
	if (!nat_expired(&work->found, ct_now()))
		return err;
	nat_twin_key(&work->other, &work->found, work->twin.protocol);
	if (nat_load(family, NAT_OTHER) && !nat_expired(&work->found, ct_now()))
		return err;
	nat_delete(family, NAT_OTHER);
	nat_delete(family, NAT_TWIN);
	return nat_store(family, NAT_TWIN, BPF_NOEXIST);
}

/* nat_create stores both entries of a flow that begins, from key and entry, of which check and expires are filled in. Another CPU may do
 * that for the same flow at the same time; then entry is what that one stored. It returns NAT_TAKEN when another flow already has what
 * this one would become. */
__attribute__((noinline)) int nat_create(__u32 family)
{
	struct nat_work *work = nat_work();
	int claimed, err;

	if (!work)
		return DROP(FILE_NAT, REASON_CT_INSERT);
	work->entry.expires = ct_now() + (work->key.protocol == IPPROTO_TCP ? ct_tcp_syn_timeout : ct_any_timeout);
	nat_twin_key(&work->twin, &work->entry, work->key.protocol);
	work->reply = work->entry;
	__builtin_memcpy(work->reply.saddr, work->key.daddr, sizeof(work->reply.saddr));
	__builtin_memcpy(work->reply.daddr, work->key.saddr, sizeof(work->reply.daddr));
	work->reply.sport = work->key.dport;
	work->reply.dport = work->key.sport;
	work->reply.twin = work->key.place;
	work->reply.flags ^= NAT_REPLY;
	claimed = nat_claim(family);
	if (claimed < 0)
		return claimed == -ERRNO_EXIST ? NAT_TAKEN : nat_refused(work, family, claimed);
	err = nat_store(family, NAT_OWN, BPF_NOEXIST);
	if (!err)
		return CONTINUE;
	work->other = work->key;
	if (err != -ERRNO_EXIST || !nat_load(family, NAT_OTHER)) {
		if (claimed == NAT_CLAIMED)
			nat_delete(family, NAT_TWIN);
		return nat_refused(work, family, err);
	}
	if (claimed == NAT_CLAIMED && !nat_same(&work->found, &work->entry))
		nat_delete(family, NAT_TWIN);
	work->entry = work->found;
	return CONTINUE;
}

/* nat_pair puts two addresses side by side, as they stand in a header. */
static __always_inline void nat_pair(__u8 *pair, const __u8 *source, const __u8 *target, __u32 family)
{
	half_word *to = (half_word *)pair;
	const half_word *from = (const half_word *)source, *next = (const half_word *)target;

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

/* What the words of was and is differ by, for checksums. */
static __always_inline __s64 nat_difference(struct nat_work *work, __u32 family)
{
	if (family == 6)
		return bpf_csum_diff((__be32 *)work->was, 32, (__be32 *)work->is, 32, 0);
	return bpf_csum_diff((__be32 *)work->was, 8, (__be32 *)work->is, 8, 0);
}

/* nat_addresses gives the header at an offset the two addresses in is. Only an IPv6 header has no checksum that makes up for them in a sum
 * over the whole packet, so the kernel has to take them in there; what is done to the upper checksum takes them out again. */
static __always_inline long nat_addresses(struct __sk_buff *skb, struct nat_work *work, __u32 at, __u32 family, __s64 difference, __u64 how)
{
	long err;

	if (family == 6)
		return bpf_skb_store_bytes(skb, at + __builtin_offsetof(struct ipv6hdr, saddr), work->is, 32, how);
	err = bpf_skb_store_bytes(skb, at + __builtin_offsetof(struct iphdr, saddr), work->is, 8, 0);
	return err | bpf_l3_csum_replace(skb, at + __builtin_offsetof(struct iphdr, check), 0, difference, 0);
}

/* Where an upper header has its checksum, and how that is mended; 0 is nowhere. */
static __always_inline __u32 nat_checksum(__u8 protocol, __u64 *how)
{
	*how = BPF_F_PSEUDO_HDR;
	switch (protocol) {
	case IPPROTO_TCP:
		return 16;
	case IPPROTO_UDP:
	case IPPROTO_UDPLITE:
		*how |= BPF_F_MARK_MANGLED_0; /* 0 says that there is none */
		return 6;
	case PROTOCOL_ICMPV6:
		return 2;
	case IPPROTO_ICMP:
		*how = 0;
		return 2;
	}
	return 0;
}

/* nat_rewrite gives a packet the ends that entry has in place of those of key. Its upper header begins at an offset, which is 0 when this
 * part of a datagram does not have it. Errors are added up: of a packet that cannot be written nothing is of use. */
__attribute__((noinline)) int nat_rewrite(struct __sk_buff *skb, __u32 family, __u32 at)
{
	struct nat_work *work = nat_work();
	__u32 checksum, ports;
	__be16 was[2], is[2];
	__s64 difference;
	__u64 how;
	long err;

	if (!work)
		return DROP(FILE_NAT, REASON_WRITE);
	was[0] = work->key.sport;
	was[1] = work->key.dport;
	is[0] = work->entry.sport;
	is[1] = work->entry.dport;
	checksum = nat_checksum(work->key.protocol, &how);
	if (!checksum && (was[0] != is[0] || was[1] != is[1]))
		return DROP(FILE_NAT, REASON_SERVICE_PROTOCOL); /* SCTP has a checksum that cannot be mended */
	nat_pair(work->was, work->key.saddr, work->key.daddr, family);
	nat_pair(work->is, work->entry.saddr, work->entry.daddr, family);
	difference = nat_difference(work, family);
	err = nat_addresses(skb, work, ETH_HLEN, family, difference, BPF_F_RECOMPUTE_CSUM);
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
	return err ? DROP(FILE_NAT, REASON_WRITE) : CONTINUE;
}

/* nat_word replaces 16 bits inside an ICMP message, whose own checksum stands at another offset. */
static __always_inline long nat_word(struct __sk_buff *skb, __u32 at, __be16 was, __be16 is, __u32 checksum)
{
	long err = bpf_l4_csum_replace(skb, checksum, was, is, 2);

	return err | bpf_skb_store_bytes(skb, at, &is, sizeof(is), 0);
}

/* nat_quoted gives the upper header that an ICMP error quotes other ports, and mends its checksum where the quote goes so far. */
__attribute__((noinline)) int nat_quoted(struct __sk_buff *skb, __u32 at, __u32 end, __s64 difference, __u32 checksum)
{
	struct nat_work *work = nat_work();
	__u32 own, sum;
	__be16 old = 0;
	__u64 how;
	int err;

	if (!work)
		return -1;
	own = nat_checksum(work->key.protocol, &how);
	if (!own)
		return work->key.sport != work->entry.sport || work->key.dport != work->entry.dport;
	if (at + own + sizeof(old) > end || bpf_skb_load_bytes(skb, at + own, &old, sizeof(old)))
		own = 0;
	sum = (__u16)~old;
	if (how)
		sum += (__u32)(difference & 0xffff) + ((__u32)difference >> 16);
	sum += (__u16)~work->key.dport + work->entry.dport;
	if (l4_is_icmp(work->key.protocol)) {
		err = nat_word(skb, at + 4, work->key.dport, work->entry.dport, checksum);
	} else {
		sum += (__u16)~work->key.sport + work->entry.sport;
		err = nat_word(skb, at, work->key.dport, work->entry.dport, checksum);
		err |= nat_word(skb, at + 2, work->key.sport, work->entry.sport, checksum);
	}
	if (!own || (!old && (how & BPF_F_MARK_MANGLED_0)))
		return err;
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (__u16)~sum;
	if (!sum && (how & BPF_F_MARK_MANGLED_0))
		sum = 0xffff;
	return err | nat_word(skb, at + own, old, sum, checksum);
}

/* nat_rewrite_error translates an ICMP error about a packet whose IP header is quoted at one offset and whose upper header at another. The
 * error goes the way of key, so the packet that it quotes has the ends of key the other way round. Who sends the error need not be an end
 * of the flow, so its address changes only when it is. */
__attribute__((noinline)) int nat_rewrite_error(struct __sk_buff *skb, __u32 family, __u32 quoted, __u32 upper, __u32 end)
{
	__u32 checksum = quoted - ICMP_LENGTH + 2, size = family == 6 ? 32 : 8;
	struct nat_work *work = nat_work();
	__s64 difference;
	int same;
	long err;

	if (!work)
		return DROP(FILE_NAT, REASON_WRITE);
	nat_pair(work->was, work->key.daddr, work->key.saddr, family);
	nat_pair(work->is, work->entry.daddr, work->entry.saddr, family);
	difference = nat_difference(work, family);
	/* In IPv4 the quoted header's own checksum makes up for its addresses. */
	err = nat_addresses(skb, work, quoted, family, difference, 0);
	if (family == 6)
		err |= bpf_l4_csum_replace(skb, checksum, 0, difference, 0);
	err |= nat_quoted(skb, upper, end, difference, checksum);

	err |= bpf_skb_load_bytes(skb, ETH_HLEN + (family == 6 ? 8 : 12), work->was, size);
	if (family == 6)
		same = !((word_at(work->was) ^ word_at(work->key.saddr)) | (word_at(work->was + 8) ^ word_at(work->key.saddr + 8)));
	else
		same = *(half_word *)work->was == *(half_word *)work->key.saddr;
	nat_pair(work->is, same ? work->entry.saddr : work->was, work->entry.daddr, family);
	difference = nat_difference(work, family);
	err |= nat_addresses(skb, work, ETH_HLEN, family, difference, BPF_F_RECOMPUTE_CSUM);
	if (family == 6)
		err |= bpf_l4_csum_replace(skb, checksum, 0, difference, BPF_F_PSEUDO_HDR);
	return err ? DROP(FILE_NAT, REASON_WRITE) : CONTINUE;
}
