/* Entries of translated flows, and the current translation. Code that uses the memory of a map has a branch for each family, because the verifier does not
 * distinguish which map memory belongs to. Here and in the code that finds, creates and uses entries (nat_find.h, nat_create.h, nat_rewrite.h, nat_error.h) no
 * function is inlined, so the verifier checks each one once. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "conntrack.h"
#include "endpoint.h"
#include "l4.h"
#include "nat_maps.h"
#include "nat_share.h"
#include "resize.h"
#include "service.h"

/* The current translation. It is in a map, because no stack has enough space for it; programs on the path of packets do not interrupt each other on one CPU. An
 * IPv4 address uses the first four bytes of its field, the others are 0. */
struct nat_work {
	struct nat_key6 key;	 /* a packet at a hook */
	struct nat_entry6 entry; /* the translated packet */
	/* For the functions below, each key with its entry. */
	struct nat_key6 reverse;
	struct nat_entry6 reply;
	struct nat_key6 other;
	struct nat_entry6 found;
	struct nat_key4 key4;
	struct nat_entry4 entry4;
	__u8 was[32] __attribute__((aligned(8))); /* two addresses of a header, four bytes for an IPv4 address */
	__u8 is[32] __attribute__((aligned(8)));
	/* For service look-ups. */
	struct choice choice;
	/* For ICMP errors: the addresses of the error itself. */
	struct addr_key from;
	struct addr_key to;
	struct l4 l4;
};

/* Indexes of a key and an entry in the work. */
#define NAT_OWN 0
#define NAT_REVERSE 1
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

/* The first fields of entries of both families, and the fields after the addresses. */
struct nat_head {
	__u32 check;
	__u32 expires;
};

struct nat_rest {
	__be16 sport;
	__be16 dport;
	enum nat_place reverse;
	enum nat_flag flags;
	__u32 service;
	__u32 backend;
	__u32 endpoint;
};
_Static_assert(sizeof(struct nat_entry4) == sizeof(struct nat_head) + 8 + sizeof(struct nat_rest) &&
		       sizeof(struct nat_entry6) == sizeof(struct nat_head) + 32 + sizeof(struct nat_rest),
	       "entries of both families differ in their addresses only");

#define NAT_SENDER_CLOSING (NAT_SENDER_FIN | NAT_SENDER_RESET)
#define NAT_OF_SENDER (NAT_SENDER_CLOSING | NAT_SENDER_ESTABLISHED)

static __always_inline struct nat_rest *nat_rest(void *entry, __u32 family)
{
	return entry + sizeof(struct nat_head) + (family == 6 ? 32 : 8);
}

static __always_inline int nat_expired(const void *entry, __u32 now)
{
	return (__s32)(((const struct nat_head *)entry)->expires - now) <= 0;
}

/* nat_key writes the addresses and ports of a packet to the key. */
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

/* A key and an entry of the work, for the map operations that both families share. */
struct nat_slot {
	struct nat_key6 key;
	struct nat_entry6 entry;
};
_Static_assert(__builtin_offsetof(struct nat_work, reverse) == sizeof(struct nat_slot) &&
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

/* nat_load copies the entry of a key into its slot. It reports whether there is one: memory that was reused for another key does not count. */
__attribute__((noinline)) int nat_load(__u32 family, __u32 which)
{
	struct nat_work *work = nat_work();
	struct nat_slot *slot = nat_slot(work, which);
	struct nat_entry4 *entry4;
	struct nat_entry6 *entry;
	__u32 check;

	if (!slot)
		return 0;
	if (family == 6) {
		if (!(entry = resize_lookup(RESIZE_NAT6, &nat6, &nat6_previous, &slot->key)))
			return 0;
		slot->entry = *entry;
		return slot->entry.check == nat_check6(&slot->key);
	}
	check = nat_check4(&work->key4, &slot->key);
	if (!(entry4 = resize_lookup(RESIZE_NAT4, &nat4, &nat4_previous, &work->key4)))
		return 0;
	nat_read4(&slot->entry, entry4);
	return slot->entry.check == check;
}

/* nat_store writes the entry of a slot, with its check, to the map. */
__attribute__((noinline)) int nat_store(__u32 family, __u32 which, __u64 how)
{
	struct nat_work *work = nat_work();
	struct nat_slot *slot = nat_slot(work, which);

	if (!slot)
		return -ERRNO_NO_MEMORY;
	if (family == 6) {
		slot->entry.check = nat_check6(&slot->key);
		return resize_update(RESIZE_NAT6, &nat6, &nat6_previous, &slot->key, &slot->entry, how);
	}
	work->entry4.check = nat_check4(&work->key4, &slot->key);
	work->entry4.expires = slot->entry.expires;
	work->entry4.saddr = *(half_word *)slot->entry.saddr;
	work->entry4.daddr = *(half_word *)slot->entry.daddr;
	*nat_rest(&work->entry4, 4) = *nat_rest(&slot->entry, 6);
	return resize_update(RESIZE_NAT4, &nat4, &nat4_previous, &work->key4, &work->entry4, how);
}

/* nat_delete deletes the entry of a key. The flow no longer counts if the entry, which the slot must have, is of its first direction. */
__attribute__((noinline)) int nat_delete(__u32 family, __u32 which)
{
	struct nat_work *work = nat_work();
	struct nat_slot *slot = nat_slot(work, which);
	int err;

	if (!slot)
		return 0;
	if (family == 6) {
		err = resize_delete(RESIZE_NAT6, &nat6, &nat6_previous, &slot->key);
	} else {
		nat_check4(&work->key4, &slot->key);
		err = resize_delete(RESIZE_NAT4, &nat4, &nat4_previous, &work->key4);
	}
	if (!err && !(slot->entry.flags & NAT_REPLY))
		nat_discharge(&slot->entry, family);
	return err;
}

/* nat_set_source sets the source address of the entry of the work. It reports whether the address exists: 0 is none. */
static __always_inline int nat_set_source(struct nat_work *work, __u32 family, __be32 ipv4, const word *ipv6)
{
	word *source = (word *)work->entry.saddr;

	source[0] = family == 6 ? ipv6[0] : ipv4;
	source[1] = family == 6 ? ipv6[1] : 0;
	return !!(source[0] | source[1]);
}

/* nat_reverse_key makes the key of the other direction. */
static __always_inline void nat_reverse_key(struct nat_key6 *reverse, const struct nat_entry6 *entry, __u8 protocol)
{
	__builtin_memcpy(reverse->saddr, entry->daddr, sizeof(reverse->saddr));
	__builtin_memcpy(reverse->daddr, entry->saddr, sizeof(reverse->daddr));
	reverse->sport = entry->dport;
	reverse->dport = entry->sport;
	reverse->protocol = protocol;
	reverse->place = entry->reverse;
	reverse->pad[0] = reverse->pad[1] = 0;
}

/* nat_same reports whether two entries translate a packet identically. */
static __always_inline int nat_same(const struct nat_entry6 *a, const struct nat_entry6 *b)
{
	__u64 differ = (a->sport ^ b->sport) | (a->dport ^ b->dport) | (a->reverse ^ b->reverse);

	for (int i = 0; i < 16; i += 8)
		differ |= (word_at(a->saddr + i) ^ word_at(b->saddr + i)) | (word_at(a->daddr + i) ^ word_at(b->daddr + i));
	return !differ;
}

/* nat_mirror derives the reverse entry from the key and the entry of a packet. */
static __always_inline void nat_mirror(struct nat_work *work)
{
	work->reply = work->entry;
	__builtin_memcpy(work->reply.saddr, work->key.daddr, sizeof(work->reply.saddr));
	__builtin_memcpy(work->reply.daddr, work->key.saddr, sizeof(work->reply.daddr));
	work->reply.sport = work->key.dport;
	work->reply.dport = work->key.sport;
	work->reply.reverse = work->key.place;
	work->reply.flags = (work->entry.flags & ~NAT_OF_SENDER) ^ NAT_REPLY;
}

/* nat_forget deletes both entries of the flow to which key and entry belong. */
__attribute__((noinline)) int nat_forget(__u32 family)
{
	struct nat_work *work = nat_work();

	if (!work)
		return 0;
	nat_reverse_key(&work->reverse, &work->entry, work->key.protocol);
	nat_delete(family, NAT_REVERSE);
	return nat_delete(family, NAT_OWN);
}
