/* Conntrack: finding, storing and expiring the entries of flows. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "clock.h"
#include "conntrack_maps.h"
#include "endpoint.h"
#include "l4.h"
#include "reasons.h"
#include "resize.h"

/* Timeouts of flows in ticks: of established TCP connections, of TCP connections that are not established, of TCP connections that were reset or closed by both
 * sides, and of all other flows. */
volatile const __u32 ct_tcp_timeout = 7451;
volatile const __u32 ct_tcp_syn_timeout = 56;
volatile const __u32 ct_tcp_close_timeout = 10;
volatile const __u32 ct_any_timeout = 56;

/* Maximum of established flows of one endpoint. */
volatile const __u32 ct_share = CT_FLOWS / 4;

/* Limit of new flows in ct_new4 and ct_new6 for each endpoint and tick: as many that it initiates, and as many that its peers initiate. With a higher limit, 16
 * endpoints at their limit would evict the new flows of all others within a tick. */
volatile const __u32 ct_new_rate = CT_NEW_FLOWS / 16;

/* Flows that each endpoint can always have, and the maximum of flows beyond these guarantees, of all endpoints together. */
volatile const __u32 ct_guarantee = CT_GUARANTEE;
volatile const __u32 ct_beyond = CT_FLOWS - CT_GUARANTEE * CT_ENDPOINTS;

_Static_assert(__builtin_offsetof(struct ct_key4, port) == 8 && __builtin_offsetof(struct ct_key6, port) == 32 &&
		       __builtin_offsetof(struct ct_key4, protocol) == 12 && __builtin_offsetof(struct ct_key4, requester) == 13 &&
		       __builtin_offsetof(struct ct_key4, type) == 14,
	       "ct_key_rest makes what follows the addresses");

#define ERRNO_EXIST 17
#define ERRNO_TOO_BIG 7
#define ERRNO_NO_MEMORY 12

union ct_key {
	struct ct_key4 v4;
	struct ct_key6 v6;
	__u64 words[5];
};

static __always_inline int ct_expired(const struct ct_entry *entry, __u32 now) { return (__s32)(entry->expires - now) <= 0; }

/* The kernel reads words of packets and map values at any address, words of the stack only at multiples of their size. */
typedef __u64 __attribute__((may_alias)) word;
typedef __u32 __attribute__((may_alias)) half_word;

/* word_at reads eight bytes at a multiple of four. With a lower alignment the compiler would read each byte alone. */
static __always_inline __u64 word_at(const void *at)
{
	const half_word *half = at;

	return (__u64)half[1] << 32 | half[0];
}

/* The two ends of an entry: 0 is the initiator, 1 the responder. An index instead of a condition halves the paths that the verifier checks. */
static __always_inline __u32 ct_end_id(const struct ct_entry *entry, __u32 end)
{
	return *(const __u16 *)((const void *)entry + __builtin_offsetof(struct ct_entry, initiator) + (end & 1) * sizeof(entry->initiator));
}

static __always_inline __u32 ct_end_identity(const struct ct_entry *entry, __u32 end)
{
	return *(const __u32 *)((const void *)entry + __builtin_offsetof(struct ct_entry, initiator_identity) +
				(end & 1) * sizeof(entry->initiator_identity));
}

static __always_inline __u32 ct_end_revision(const struct ct_entry *entry, __u32 end)
{
	return *(const __u32 *)((const void *)entry + __builtin_offsetof(struct ct_entry, initiator_revision) +
				(end & 1) * sizeof(entry->initiator_revision));
}

/* ct_path returns the path of a flow. */
static __always_inline enum flow_path ct_path(const struct ct_entry *entry) { return entry->flags & CT_VIA_STACK ? PATH_STACK : PATH_PEER; }

/* ct_end returns the end of an entry that is at a side of its key; CT_INITIATOR_SECOND is bit 0. */
static __always_inline __u32 ct_end(const struct ct_entry *entry, __u32 second) { return (entry->flags ^ second) & 1; }

/* ct_requester returns the value of requester in a key: the side that sent the request to which an ICMP message belongs. */
static __always_inline __u8 ct_requester(const struct l4 *l4, int second)
{
	if (l4->role == L4_PLAIN)
		return 0;
	return 1 + (l4->role == L4_REPLY ? !second : second);
}

/* The keys are computed without branches: the verifier would check the caller once for each combination. They are not stored by bytes either: a CPU that reads
 * them as words right after would wait for the stores. */

/* is_above returns 1 when a is greater than b, otherwise 0: the borrow of b - a (Hacker's Delight, 2-13). */
static __always_inline __u64 is_above(__u64 a, __u64 b) { return ((~b & a) | ((~b | a) & (b - a))) >> 63; }

/* hidden returns its argument, and hides the value from the compiler. */
static __always_inline __u64 hidden(__u64 number)
{
	asm("" : "+r"(number));
	return number;
}

/* is_below returns 1 when a is smaller than b, otherwise 0, for numbers of less than 64 bits. hidden keeps the compiler from generating branches. */
static __always_inline __u64 is_below(__u64 a, __u64 b) { return hidden(a - b) >> 63; }

/* is_equal returns 1 when both are equal, otherwise 0. */
static __always_inline __u64 is_equal(__u64 a, __u64 b)
{
	__u64 differ = a ^ b;

	return ~(differ | -differ) >> 63;
}

/* ct_key_rest returns the last word of a key, all fields after the addresses; second is 1 when the sender is the second side, otherwise 0. */
static __always_inline __u64 ct_key_rest(const struct l4 *l4, __u64 second)
{
	__u64 swap = (l4->sport ^ l4->dport) & -second;

	return (l4->sport ^ swap) | (l4->dport ^ swap) << 16 | (__u64)l4->protocol << 32 | (__u64)ct_requester(l4, second) << 40 | (__u64)l4->type << 48;
}

/* ct_key4_make makes the key of a packet between two addresses, and returns 1 when the sender is its second side, otherwise 0. Callers mask values that they
 * compute from the result: Linux 6.1 loses the bounds of a number after an exclusive or. The compiler would omit the mask if it knew the number. */
static __always_inline int ct_key4_make(union ct_key *key, const void *from, const void *to, const struct l4 *l4)
{
	__be32 source = *(const __be32 *)from, destination = *(const __be32 *)to;
	__u64 second = is_below((__u64)destination << 16 | l4->dport, (__u64)source << 16 | l4->sport);
	__u32 swap = (source ^ destination) & -second;

	key->words[0] = (source ^ swap) | (__u64)(destination ^ swap) << 32;
	key->words[1] = ct_key_rest(l4, second);
	return hidden(second);
}

static __always_inline int ct_key6_make(union ct_key *key, const void *from, const void *to, const struct l4 *l4)
{
	const word *source = from, *destination = to;
	__u64 second = is_above(source[0], destination[0]) |
		       (is_equal(source[0], destination[0]) &
			(is_above(source[1], destination[1]) | (is_equal(source[1], destination[1]) & is_below(l4->dport, l4->sport))));

#pragma unroll
	for (int i = 0; i < 2; i++) {
		__u64 swap = (source[i] ^ destination[i]) & -second;

		key->words[i] = source[i] ^ swap;
		key->words[2 + i] = destination[i] ^ swap;
	}
	key->words[4] = ct_key_rest(l4, second);
	return hidden(second);
}

/* ct_check folds a key of 64-bit words. It distinguishes an entry from previous entries in the same memory; it is no hash for tables whose slots a sender must
 * not choose. */
static __always_inline __u32 ct_check(const void *key, const int words)
{
	__u64 sum = 0;

#pragma unroll
	for (int i = 0; i < words; i++)
		sum = (sum ^ word_at(key + i * 8)) * 0x9e3779b97f4a7c15ULL;
	return (__u32)(sum >> 32) | 1;
}

/* Keys and values for the functions below are on the stack: helpers of Linux 6.1 accept none from memory that a function got as an argument. */

/* ct_established finds the entry of an established flow for the fast path. While the map is resized it misses flows that ct_find finds. */
static __always_inline struct ct_entry *ct_established(const union ct_key *key, __u8 family)
{
	if (family == 6)
		return bpf_map_lookup_elem(&ct_est6, &key->v6);
	return bpf_map_lookup_elem(&ct_est4, &key->v4);
}

/* The table that has the entry of a flow. */
enum ct_table {
	CT_NOWHERE = 0,
	CT_IN_NEW = 1,
	CT_IN_BURST = 2,
	CT_IN_ESTABLISHED = 3,
};

/* ct_find finds the entry of a flow, and the table that has it. */
static __always_inline struct ct_entry *ct_find(const union ct_key *key, __u8 family, enum ct_table *table)
{
	struct ct_entry *entry;

	*table = CT_IN_ESTABLISHED;
	if ((entry = family == 6 ? resize_lookup(RESIZE_CT_EST6, &ct_est6, &ct_est6_previous, &key->v6) : resize_lookup(RESIZE_CT_EST4, &ct_est4, &ct_est4_previous, &key->v4)))
		return entry;
	*table = CT_IN_NEW;
	if ((entry = family == 6 ? bpf_map_lookup_elem(&ct_new6, &key->v6) : bpf_map_lookup_elem(&ct_new4, &key->v4)))
		return entry;
	*table = CT_IN_BURST;
	if ((entry = family == 6 ? bpf_map_lookup_elem(&ct_burst6, &key->v6) : bpf_map_lookup_elem(&ct_burst4, &key->v4)))
		return entry;
	*table = CT_NOWHERE;
	return NULL;
}

/* ct_payer returns the endpoint for which a flow counts. */
static __always_inline __u32 ct_payer(const struct ct_entry *entry) { return entry->initiator ? entry->initiator : entry->responder; }

/* ct_count adds to the counter in a slot of ct_flows and returns the sum. The agent corrects the counters, so they may be slightly wrong for a while, also
 * below 0. */
static __always_inline __s32 ct_count(__u32 slot, __s32 flows)
{
	__s32 *count = bpf_map_lookup_elem(&ct_flows, &slot);

	return count ? __sync_fetch_and_add(count, flows) + flows : 0;
}

/* ct_discharge subtracts one established flow. */
static __always_inline void ct_discharge(__u32 endpoint)
{
	if (ct_count(endpoint, -1) >= (__s32)ct_guarantee)
		ct_count(0, -1);
}

/* ct_charge adds one established flow. It returns 0 when the endpoint may not have it: the endpoint has used up its share, or it has used up its guarantee and
 * the flows of all endpoints beyond guarantees have reached ct_beyond. */
static __always_inline int ct_charge(__u32 endpoint)
{
	__s32 count = ct_count(endpoint, 1);
	int fits = count <= (__s32)ct_share;

	if (count > (__s32)ct_guarantee && ct_count(0, 1) > (__s32)ct_beyond)
		fits = 0;
	if (!fits)
		ct_discharge(endpoint);
	return fits;
}

static __always_inline void ct_signal(__u8 family, __u32 endpoint)
{
	struct ct_signal signal = { .family = family, .endpoint = endpoint };

	bpf_ringbuf_output(&ct_signals, &signal, sizeof(signal), 0);
}

/* ct_forget deletes an entry from its table. The argument may point into the map, whose memory may be reused for another flow immediately. */
static __always_inline void ct_forget(const union ct_key *key, __u8 family, enum ct_table table, const struct ct_entry *entry)
{
	__u32 payer = ct_payer(entry);
	long deleted;

	switch (table) {
	case CT_IN_ESTABLISHED:
		deleted = family == 6 ? resize_delete(RESIZE_CT_EST6, &ct_est6, &ct_est6_previous, &key->v6) : resize_delete(RESIZE_CT_EST4, &ct_est4, &ct_est4_previous, &key->v4);
		if (!deleted)
			ct_discharge(payer);
		break;
	case CT_IN_NEW:
		family == 6 ? bpf_map_delete_elem(&ct_new6, &key->v6) : bpf_map_delete_elem(&ct_new4, &key->v4);
		break;
	case CT_IN_BURST:
		family == 6 ? bpf_map_delete_elem(&ct_burst6, &key->v6) : bpf_map_delete_elem(&ct_burst4, &key->v4);
		break;
	case CT_NOWHERE:
		break;
	}
}

/* ct_bursts counts a new flow. It reports whether the endpoint, or its peers, initiated too many flows in this tick. */
static __always_inline int ct_bursts(const struct ct_entry *entry)
{
	__u32 slot = entry->initiator ? entry->initiator : ENDPOINTS_MAX + entry->responder;

	return rate_exceeded(bpf_map_lookup_elem(&ct_rates, &slot), ct_now(), ct_new_rate);
}

/* ct_keep_new stores a flow that is not established. A flow that already has an entry stays in its table. */
static __always_inline verdict ct_keep_new(const union ct_key *key, __u8 family, enum ct_table table, const struct ct_entry *entry)
{
	long err;

	if (table == CT_IN_BURST || (table == CT_NOWHERE && ct_bursts(entry)))
		err = family == 6 ? bpf_map_update_elem(&ct_burst6, &key->v6, entry, BPF_ANY) :
				    bpf_map_update_elem(&ct_burst4, &key->v4, entry, BPF_ANY);
	else
		err = family == 6 ? bpf_map_update_elem(&ct_new6, &key->v6, entry, BPF_ANY) :
				    bpf_map_update_elem(&ct_new4, &key->v4, entry, BPF_ANY);
	return err ? DROP(FILE_CONNTRACK, REASON_CT_INSERT) : CONTINUE;
}

static __always_inline int ct_store(const union ct_key *key, __u8 family, const struct ct_entry *entry, __u64 how)
{
	if (family == 6)
		return resize_update(RESIZE_CT_EST6, &ct_est6, &ct_est6_previous, &key->v6, entry, how);
	return resize_update(RESIZE_CT_EST4, &ct_est4, &ct_est4_previous, &key->v4, entry, how);
}

/* ct_not_stored returns the drop for an established flow that cannot be stored. */
static __always_inline verdict ct_not_stored(int err, __u8 family)
{
	if (err != -ERRNO_TOO_BIG && err != -ERRNO_NO_MEMORY)
		return DROP(FILE_CONNTRACK, REASON_CT_INSERT);
	ct_signal(family, 0);
	return DROP(FILE_CONNTRACK, REASON_CT_FULL);
}

/* ct_replace stores an established flow over its own entry. */
static __always_inline verdict ct_replace(const union ct_key *key, __u8 family, const struct ct_entry *entry)
{
	int err = ct_store(key, family, entry, BPF_ANY);

	return err ? ct_not_stored(err, family) : CONTINUE;
}

/* ct_establish moves a flow to the established ones. Another CPU may do this at the same time. */
static __always_inline verdict ct_establish(const union ct_key *key, __u8 family, enum ct_table table, const struct ct_entry *entry)
{
	__u32 payer = ct_payer(entry);
	int err;

	if (!ct_charge(payer)) {
		ct_signal(family, payer);
		return DROP(FILE_CONNTRACK, REASON_CT_SHARE);
	}
	err = ct_store(key, family, entry, BPF_NOEXIST);
	if (err)
		ct_discharge(payer);
	if (err && err != -ERRNO_EXIST)
		return ct_not_stored(err, family);
	ct_forget(key, family, table, entry);
	return CONTINUE;
}

/* The first CT_EXACT packets of a flow are counted one by one. On the fast path one of 2^CT_SAMPLE_BITS later packets is counted, for that many. */
#define CT_EXACT 1024
#define CT_SAMPLE_BITS 4

/* ct_account counts a packet of an established flow. number is a counter of the CPU. The function seldom writes to the entry of a long flow, so two CPUs with
 * packets of the flow read the entry from their own caches. Multiples of the golden ratio are spread evenly, and so are every second or third of them (Knuth,
 * 6.4): flows whose packets alternate have equal shares of the sample. There is only one branch, because the verifier would check each path. */
static __always_inline void ct_account(struct ct_entry *entry, __u32 bytes, __u64 number)
{
	__u64 is_exact = is_below(entry->packets << 16 >> 16, CT_EXACT);
	__u64 is_sample = is_below(number * 0x9e3779b97f4a7c15ULL >> (64 - CT_SAMPLE_BITS), 1);
	__u64 packets = is_exact | (is_sample & ~is_exact) << CT_SAMPLE_BITS;

	if (!packets)
		return;
	entry->packets += packets;
	entry->bytes += packets * bytes;
}

/* ct_is_open reports whether a flow continues with a packet that has neither SYN nor FIN nor RST. */
static __always_inline int ct_is_open(const struct ct_entry *entry, __u8 protocol, __u32 now)
{
	return !ct_expired(entry, now) && (protocol != IPPROTO_TCP || (entry->flags & (CT_CLOSING | CT_ESTABLISHED)) == CT_ESTABLISHED);
}

/* ct_continue counts a packet of an open flow, and updates the timeout. */
static __always_inline void ct_continue(struct ct_entry *entry, __u8 protocol, __u32 now, __u32 bytes)
{
	__u32 expires = now + (protocol == IPPROTO_TCP ? ct_tcp_timeout : ct_any_timeout);

	if (entry->expires != expires)
		entry->expires = expires;
	entry->packets++;
	entry->bytes += bytes;
}

/* ct_own_reset is the flag that a segment of a TCP connection sets or clears. */
static __always_inline __u32 ct_own_reset(int sender_initiates) { return sender_initiates ? CT_INITIATOR_RESET : CT_RESPONDER_RESET; }

/* ct_advance updates the state of a flow from a packet. A reset closes the flow only while it is the last segment of its sender: the peer ignores a reset whose
 * sequence number is outside of its window (RFC 9293, 3.10.7.4), and then the real sender continues to send. */
static __always_inline void ct_advance(struct ct_entry *entry, const struct l4 *l4, int sender_initiates, __u32 now)
{
	__u32 timeout = ct_any_timeout, reset = ct_own_reset(sender_initiates);

	if (!sender_initiates && !(l4->tcp_flags & TCP_RST))
		entry->flags |= CT_REPLIED;
	if (l4->protocol == IPPROTO_TCP) {
		if (l4->tcp_flags & TCP_FIN)
			entry->flags |= sender_initiates ? CT_INITIATOR_FIN : CT_RESPONDER_FIN;
		entry->flags &= ~reset;
		if (l4->tcp_flags & TCP_RST)
			entry->flags |= reset;
		if (!(l4->tcp_flags & TCP_SYN))
			entry->flags |= CT_ESTABLISHED;
		if ((entry->flags & CT_RESET) || (entry->flags & CT_CLOSING) == (CT_INITIATOR_FIN | CT_RESPONDER_FIN))
			timeout = ct_tcp_close_timeout;
		else
			timeout = entry->flags & CT_ESTABLISHED ? ct_tcp_timeout : ct_tcp_syn_timeout;
	}
	entry->expires = now + timeout;
}
