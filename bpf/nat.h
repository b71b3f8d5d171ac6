/* Translating packets: finding and making the entries of translated flows, and giving packets other ends. What works on a map stands in a
 * function for each family, as the verifier does not keep apart which of the maps memory belongs to; and in functions of its own, so that it
 * walks through them once. */
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
	/* For the functions below. */
	struct nat_key6 twin;
	struct nat_entry6 reply;
	struct nat_key6 holder; /* the other direction of a flow that is in the way */
	struct nat_entry6 held;
	struct nat_key4 key4;
	struct nat_entry4 entry4;
	__u8 was[32] __attribute__((aligned(8))); /* two addresses of a header, an IPv4 address takes four bytes */
	__u8 is[32] __attribute__((aligned(8)));
	/* For whoever looks for a service. */
	struct choice choice;
};

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

static __always_inline void nat_key4_make(struct nat_work *work, const struct nat_key6 *key)
{
	work->key4.saddr = *(const __be32 *)key->saddr;
	work->key4.daddr = *(const __be32 *)key->daddr;
	work->key4.sport = key->sport;
	work->key4.dport = key->dport;
	work->key4.protocol = key->protocol;
	work->key4.place = key->place;
	work->key4.pad[0] = work->key4.pad[1] = 0;
}

/* nat_lookup returns the entry of a key; memory that serves another one by now is none. */
static __always_inline void *nat_lookup(struct nat_work *work, const struct nat_key6 *key, __u32 family)
{
	struct nat_head *entry;
	__u32 check;

	if (family == 6) {
		check = ct_check(key, sizeof(*key) / 8);
		entry = bpf_map_lookup_elem(&nat6, key);
	} else {
		nat_key4_make(work, key);
		check = ct_check(&work->key4, sizeof(work->key4) / 8);
		entry = bpf_map_lookup_elem(&nat4, &work->key4);
	}
	return entry && entry->check == check ? entry : NULL;
}

static __always_inline void nat_delete(struct nat_work *work, const struct nat_key6 *key, __u32 family)
{
	if (family == 6) {
		bpf_map_delete_elem(&nat6, key);
		return;
	}
	nat_key4_make(work, key);
	bpf_map_delete_elem(&nat4, &work->key4);
}

/* nat_read copies an entry of either family. */
static __always_inline void nat_read(struct nat_entry6 *to, const void *from, __u32 family)
{
	if (family == 6) {
		*to = *(const struct nat_entry6 *)from;
		return;
	}
	*to = (struct nat_entry6){};
	*(struct nat_head *)to = *(const struct nat_head *)from;
	*(__be32 *)to->saddr = ((const struct nat_entry4 *)from)->saddr;
	*(__be32 *)to->daddr = ((const struct nat_entry4 *)from)->daddr;
	*nat_rest(to, 6) = *nat_rest((void *)from, 4);
}

/* nat_store writes an entry with its check, unless there is one. */
static __always_inline long nat_store(struct nat_work *work, const struct nat_key6 *key, struct nat_entry6 *entry, __u32 family)
{
	if (family == 6) {
		entry->check = ct_check(key, sizeof(*key) / 8);
		return bpf_map_update_elem(&nat6, key, entry, BPF_NOEXIST);
	}
	nat_key4_make(work, key);
	work->entry4.check = ct_check(&work->key4, sizeof(work->key4) / 8);
	work->entry4.expires = entry->expires;
	work->entry4.saddr = *(__be32 *)entry->saddr;
	work->entry4.daddr = *(__be32 *)entry->daddr;
	*nat_rest(&work->entry4, 4) = *nat_rest(entry, 6);
	return bpf_map_update_elem(&nat4, &work->key4, &work->entry4, BPF_NOEXIST);
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

/* nat_closed tells from the flags of both directions whether a connection has ended. */
static __always_inline int nat_closed(__u32 own, __u32 twin)
{
	return ((own | twin) & NAT_SENDER_RESET) || (own & twin & NAT_SENDER_FIN);
}

/* nat_follow is nat_find for packets that say something about both directions, or whose own one has expired. */
static __always_inline int nat_follow(struct nat_work *work, void *own, __u32 family, __u32 tcp_flags, __u32 now)
{
	__u32 flags = work->entry.flags, other = 0, timeout = ct_any_timeout;
	void *twin;

	nat_twin_key(&work->twin, &work->entry, work->key.protocol);
	twin = nat_lookup(work, &work->twin, family);
	if (twin)
		other = nat_rest(twin, family)->flags;
	if ((nat_expired(own, now) && (!twin || nat_expired(twin, now))) ||
	    ((tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN && ((flags | other) & NAT_SENDER_CLOSING))) {
		nat_delete(work, &work->twin, family);
		nat_delete(work, &work->key, family);
		return 0;
	}
	if (work->key.protocol == IPPROTO_TCP) {
		if (tcp_flags & TCP_FIN)
			flags |= NAT_SENDER_FIN;
		if (tcp_flags & TCP_RST)
			flags |= NAT_SENDER_RESET;
		if (!(tcp_flags & TCP_SYN))
			flags |= NAT_SENDER_STANDS;
		__sync_fetch_and_or((__u32 *)&nat_rest(own, family)->flags, flags);
		timeout = flags & NAT_SENDER_STANDS ? ct_tcp_timeout : ct_tcp_syn_timeout;
		if (nat_closed(flags, other)) {
			timeout = ct_tcp_close_timeout;
			if (twin)
				((struct nat_head *)twin)->expires = now + timeout;
		}
	}
	((struct nat_head *)own)->expires = now + timeout;
	return 1;
}

/* nat_find looks for the key, copies what it becomes into entry and notes what a packet says about its flow. It returns 1 when there is
 * an entry, 0 when there is none or the flow is over; the entries of such a flow are gone then. Functions of their own, as others here, so
 * that the verifier walks through them once. */
static __always_inline int nat_finding(const __u32 family, __u32 tcp_flags)
{
	struct nat_work *work = nat_work();
	__u32 now = ct_now(), expires;
	struct nat_head *own;

	if (!work || !(own = nat_lookup(work, &work->key, family)))
		return 0;
	nat_read(&work->entry, own, family);
	if (work->key.protocol == IPPROTO_TCP) {
		if ((tcp_flags & (TCP_SYN | TCP_FIN | TCP_RST)) ||
		    (work->entry.flags & (NAT_SENDER_CLOSING | NAT_SENDER_STANDS)) != NAT_SENDER_STANDS)
			return nat_follow(work, own, family, tcp_flags, now);
		expires = now + ct_tcp_timeout;
		/* A short time was set by the end of the connection, as the other direction noticed it. */
		if ((__s32)(own->expires - now) <= (__s32)ct_tcp_close_timeout)
			return nat_follow(work, own, family, tcp_flags, now);
	} else {
		expires = now + ct_any_timeout;
	}
	if (nat_expired(own, now))
		return nat_follow(work, own, family, tcp_flags, now);
	if (own->expires != expires)
		own->expires = expires;
	return 1;
}

__attribute__((noinline)) int nat_find4(__u32 tcp_flags) { return nat_finding(4, tcp_flags); }

__attribute__((noinline)) int nat_find6(__u32 tcp_flags) { return nat_finding(6, tcp_flags); }

static __always_inline int nat_find(__u32 family, __u32 tcp_flags)
{
	return family == 6 ? nat_find6(tcp_flags) : nat_find4(tcp_flags);
}

/* nat_peek is nat_find for ICMP errors, which tell nothing about how long a flow lasts. */
static __always_inline int nat_peeking(const __u32 family)
{
	struct nat_work *work = nat_work();
	__u32 now = ct_now();
	void *own, *twin;

	if (!work || !(own = nat_lookup(work, &work->key, family)))
		return 0;
	nat_read(&work->entry, own, family);
	if (!nat_expired(own, now))
		return 1;
	nat_twin_key(&work->twin, &work->entry, work->key.protocol);
	twin = nat_lookup(work, &work->twin, family);
	return twin && !nat_expired(twin, now);
}

__attribute__((noinline)) int nat_peek4(void) { return nat_peeking(4); }

__attribute__((noinline)) int nat_peek6(void) { return nat_peeking(6); }

static __always_inline int nat_peek(__u32 family) { return family == 6 ? nat_peek6() : nat_peek4(); }

/* nat_same tells whether two entries make the same of a packet. */
static __always_inline int nat_same(const struct nat_entry6 *a, const struct nat_entry6 *b)
{
	return word_at(a->saddr) == word_at(b->saddr) && word_at(a->saddr + 8) == word_at(b->saddr + 8) &&
	       word_at(a->daddr) == word_at(b->daddr) && word_at(a->daddr + 8) == word_at(b->daddr + 8) && a->sport == b->sport &&
	       a->dport == b->dport && a->twin == b->twin;
}

#define NAT_TAKEN 1 /* another flow has what this one would become */

/* nat_refused says why a flow cannot be stored. */
static __always_inline verdict nat_refused(const struct nat_work *work, __u32 family, long err)
{
	if (err != -ERRNO_TOO_BIG && err != -ERRNO_NO_MEMORY)
		return DROP(FILE_NAT, REASON_CT_INSERT);
	ct_signal(NAT_SIGNAL + family, work->entry.endpoint);
	return DROP(FILE_NAT, REASON_NAT_FULL);
}

/* nat_claim stores the twin, in place of one whose flow is over. Another CPU may have done so for the same flow. */
static __always_inline long nat_claim(struct nat_work *work, __u32 family, __u32 now, int *mine)
{
	long err = nat_store(work, &work->twin, &work->reply, family);
	void *old;

	*mine = !err;
	if (err != -ERRNO_EXIST || !(old = nat_lookup(work, &work->twin, family)))
		return err;
	nat_read(&work->held, old, family);
	if (nat_same(&work->held, &work->reply))
		return 0;
	if (!nat_expired(old, now))
		return err;
	nat_twin_key(&work->holder, &work->held, work->twin.protocol);
	old = nat_lookup(work, &work->holder, family);
	if (old && !nat_expired(old, now))
		return err;
	nat_delete(work, &work->twin, family);
	nat_delete(work, &work->holder, family);
	err = nat_store(work, &work->twin, &work->reply, family);
	*mine = !err;
	return err;
}

/* nat_create stores both entries of a flow that begins, from key and entry, of which check and expires are filled in. Another CPU may do
 * that for the same flow at the same time; then entry is what that one stored. It returns NAT_TAKEN when another flow already has what
 * this one would become. */
static __always_inline int nat_creating(const __u32 family)
{
	struct nat_work *work = nat_work();
	__u32 now = ct_now();
	int mine = 0;
	void *other;
	long err;

	if (!work)
		return DROP(FILE_NAT, REASON_CT_INSERT);
	work->entry.expires = now + (work->key.protocol == IPPROTO_TCP ? ct_tcp_syn_timeout : ct_any_timeout);
	nat_twin_key(&work->twin, &work->entry, work->key.protocol);
	work->reply = work->entry;
	__builtin_memcpy(work->reply.saddr, work->key.daddr, sizeof(work->reply.saddr));
	__builtin_memcpy(work->reply.daddr, work->key.saddr, sizeof(work->reply.daddr));
	work->reply.sport = work->key.dport;
	work->reply.dport = work->key.sport;
	work->reply.twin = work->key.place;
	work->reply.flags ^= NAT_REPLY;
	if ((err = nat_claim(work, family, now, &mine)))
		return err == -ERRNO_EXIST ? NAT_TAKEN : nat_refused(work, family, err);
	if (!(err = nat_store(work, &work->key, &work->entry, family)))
		return CONTINUE;
	other = err == -ERRNO_EXIST ? nat_lookup(work, &work->key, family) : NULL;
	if (other) {
		nat_read(&work->held, other, family);
		if (nat_same(&work->held, &work->entry))
			return CONTINUE;
	}
	if (mine)
		nat_delete(work, &work->twin, family);
	if (!other)
		return nat_refused(work, family, err);
	work->entry = work->held;
	return CONTINUE;
}

__attribute__((noinline)) int nat_create4(void) { return nat_creating(4); }

__attribute__((noinline)) int nat_create6(void) { return nat_creating(6); }

static __always_inline int nat_create(__u32 family) { return family == 6 ? nat_create6() : nat_create4(); }

/* nat_pair puts two addresses side by side, as they stand in a header. */
static __always_inline void nat_pair(__u8 *pair, const __u8 *source, const __u8 *target, __u32 family)
{
	if (family == 6) {
		__builtin_memcpy(pair, source, 16);
		__builtin_memcpy(pair + 16, target, 16);
		return;
	}
	__builtin_memcpy(pair, source, 4);
	__builtin_memcpy(pair + 4, target, 4);
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
	if (family == 6)
		return bpf_skb_store_bytes(skb, at + __builtin_offsetof(struct ipv6hdr, saddr), work->is, 32, how);
	if (bpf_skb_store_bytes(skb, at + __builtin_offsetof(struct iphdr, saddr), work->is, 8, 0))
		return -1;
	return bpf_l3_csum_replace(skb, at + __builtin_offsetof(struct iphdr, check), 0, difference, 0);
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
 * part of a datagram does not have it. */
__attribute__((noinline)) int nat_rewrite(struct __sk_buff *skb, __u32 family, __u32 at)
{
	struct nat_work *work = nat_work();
	__be16 was[2], is[2];
	__u32 checksum;
	__s64 difference;
	__u64 how;

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
	if (nat_addresses(skb, work, ETH_HLEN, family, difference, BPF_F_RECOMPUTE_CSUM))
		return DROP(FILE_NAT, REASON_WRITE);
	if (!at || !checksum)
		return CONTINUE;
	if ((how & BPF_F_PSEUDO_HDR) && bpf_l4_csum_replace(skb, at + checksum, 0, difference, how))
		return DROP(FILE_NAT, REASON_WRITE);
	if (was[0] == is[0] && was[1] == is[1])
		return CONTINUE;
	how &= ~(__u64)BPF_F_PSEUDO_HDR;
	if (l4_is_icmp(work->key.protocol)) {
		if (bpf_l4_csum_replace(skb, at + checksum, was[0], is[0], how | 2) || bpf_skb_store_bytes(skb, at + 4, &is[0], 2, 0))
			return DROP(FILE_NAT, REASON_WRITE);
		return CONTINUE;
	}
	if (bpf_l4_csum_replace(skb, at + checksum, *(__be32 *)was, *(__be32 *)is, how | 4) || bpf_skb_store_bytes(skb, at, is, 4, 0))
		return DROP(FILE_NAT, REASON_WRITE);
	return CONTINUE;
}

/* nat_word replaces 16 bits inside an ICMP message, whose own checksum stands at another offset. */
static __always_inline long nat_word(struct __sk_buff *skb, __u32 at, __be16 was, __be16 is, __u32 checksum)
{
	if (was == is)
		return 0;
	if (bpf_l4_csum_replace(skb, checksum, was, is, 2))
		return -1;
	return bpf_skb_store_bytes(skb, at, &is, sizeof(is), 0);
}

/* nat_quoted gives the upper header that an ICMP error quotes other ports, and mends its checksum where the quote goes so far. */
static __always_inline long nat_quoted(struct __sk_buff *skb, struct nat_work *work, __u32 at, __u32 end, __s64 difference, __u32 checksum)
{
	__u32 own, sum;
	__be16 old = 0;
	__u64 how;

	own = nat_checksum(work->key.protocol, &how);
	if (!own)
		return work->key.sport == work->entry.sport && work->key.dport == work->entry.dport ? 0 : -1;
	if (at + own + sizeof(old) <= end && bpf_skb_load_bytes(skb, at + own, &old, sizeof(old)))
		return -1;
	sum = (__u16)~old;
	if (how & BPF_F_PSEUDO_HDR)
		sum += (__u32)(difference & 0xffff) + ((__u32)difference >> 16);
	if (l4_is_icmp(work->key.protocol)) {
		if (nat_word(skb, at + 4, work->key.dport, work->entry.dport, checksum))
			return -1;
		sum += (__u16)~work->key.dport + work->entry.dport;
	} else {
		if (nat_word(skb, at, work->key.dport, work->entry.dport, checksum) ||
		    nat_word(skb, at + 2, work->key.sport, work->entry.sport, checksum))
			return -1;
		sum += (__u16)~work->key.dport + work->entry.dport + (__u16)~work->key.sport + work->entry.sport;
	}
	if (!old && ((how & BPF_F_MARK_MANGLED_0) || at + own + sizeof(old) > end))
		return 0;
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (__u16)~sum;
	if (!sum && (how & BPF_F_MARK_MANGLED_0))
		sum = 0xffff;
	return nat_word(skb, at + own, old, sum, checksum);
}

/* nat_rewrite_error translates an ICMP error about a packet whose IP header is quoted at one offset and whose upper header at another. The
 * error goes the way of key, so the packet that it quotes has the ends of key the other way round. Who sends the error need not be an end
 * of the flow, so its address changes only when it is. */
__attribute__((noinline)) int nat_rewrite_error(struct __sk_buff *skb, __u32 family, __u32 quoted, __u32 upper, __u32 end)
{
	__u32 checksum = quoted - ICMP_LENGTH + 2;
	struct nat_work *work = nat_work();
	__s64 difference;
	int same;

	if (!work)
		return DROP(FILE_NAT, REASON_WRITE);
	nat_pair(work->was, work->key.daddr, work->key.saddr, family);
	nat_pair(work->is, work->entry.daddr, work->entry.saddr, family);
	difference = nat_difference(work, family);
	/* In IPv4 the quoted header's own checksum makes up for its addresses. */
	if (nat_addresses(skb, work, quoted, family, difference, 0) ||
	    (family == 6 && bpf_l4_csum_replace(skb, checksum, 0, difference, 0)) ||
	    nat_quoted(skb, work, upper, end, difference, checksum))
		return DROP(FILE_NAT, REASON_WRITE);

	if (bpf_skb_load_bytes(skb, ETH_HLEN + (family == 6 ? 8 : 12), work->was, family == 6 ? 32 : 8))
		return DROP(FILE_NAT, REASON_WRITE);
	if (family == 6)
		same = word_at(work->was) == word_at(work->key.saddr) && word_at(work->was + 8) == word_at(work->key.saddr + 8);
	else
		same = *(__be32 *)work->was == *(__be32 *)work->key.saddr;
	nat_pair(work->is, same ? work->entry.saddr : work->was, work->entry.daddr, family);
	difference = nat_difference(work, family);
	if (nat_addresses(skb, work, ETH_HLEN, family, difference, BPF_F_RECOMPUTE_CSUM) ||
	    (family == 6 && bpf_l4_csum_replace(skb, checksum, 0, difference, BPF_F_PSEUDO_HDR)))
		return DROP(FILE_NAT, REASON_WRITE);
	return CONTINUE;
}
