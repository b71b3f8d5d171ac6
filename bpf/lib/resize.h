/* Resize of the maps of flows. Programs of another generation use the previous map and cannot be changed, so while hooks are replaced, programs that
 * are loaded for the resize read it on a miss and write to it. Once they run on every hook, they write to both maps, while the agent copies the entries to the
 * new (present) map. Each program finds every entry in a map that it reads. Programs that are not loaded for a resize contain no resize code. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

/* The number of the resize for which the programs are loaded, 0 for none. */
volatile const __u32 resize_number = 0;

/* Maps of flows. resize.go has the same bits. */
enum resize_map {
	RESIZE_CT_EST4 = 1,
	RESIZE_CT_EST6 = 2,
	RESIZE_NAT4 = 4,
	RESIZE_NAT6 = 8,
};

/* The maps that change in this resize. For any other map, previous and present are the same, so a second write would fail because of the first; the verifier
 * removes the resize code for it. */
volatile const __u32 resize_maps = 0;

/* RESIZE_BEFORE: the present map is empty. RESIZE_DURING: the previous map has every entry, and the present one has the entries that were copied or changed
 * since. RESIZE_NONE: the present map has every entry. Between two phases the agent waits until all running programs have ended. */
enum resize_phase {
	RESIZE_NONE = 0,
	RESIZE_BEFORE = 1,
	RESIZE_DURING = 2,
};

#define RESIZE_PHASES 4 /* the value of resize_state: the number of the resize times this, plus the phase */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} resize_state SEC(".maps");

/* The key of resize_state is global, because callers have little stack space. */
static const __u32 resize_key = 0;

/* resize_phase returns the phase of the resize for which the programs are loaded, if it changes the map. For programs of a completed resize this is
 * RESIZE_NONE, also after the start of the next resize, whose previous map is the present map of these programs. */
static __always_inline __u32 resize_phase(enum resize_map map)
{
	__u32 *state;

	if (!(resize_maps & map))
		return RESIZE_NONE;
	state = bpf_map_lookup_elem(&resize_state, &resize_key);
	return state && *state / RESIZE_PHASES == resize_number ? *state % RESIZE_PHASES : RESIZE_NONE;
}

/* These functions replace the map helpers for a key in two maps. The present map is read first: if both maps have an entry, the present one has the newer. */
static __always_inline void *resize_lookup(enum resize_map map, void *present, void *previous, const void *key)
{
	void *entry = bpf_map_lookup_elem(present, key);

	return !entry && resize_phase(map) ? bpf_map_lookup_elem(previous, key) : entry;
}

/* The next two functions return int, because before Linux 6.4 the map operations return int. The verifier replaces a helper by a call of the operation, which
 * does not extend the sign into the upper half of the register. */

/* The previous map decides whether a key exists. An entry that must exist may be missing in the present map, because the agent has not copied it yet. An entry
 * that must not exist may be in the present map: a copy that the agent deletes at once, or an entry of a program that already sees the end of the resize. Then,
 * and when the map is full, the key is also deleted in the previous map. */
static __always_inline int resize_update(enum resize_map map, void *present, void *previous, const void *key, const void *entry, __u64 how)
{
	__u32 phase = resize_phase(map);
	int err;

	if (!phase)
		return bpf_map_update_elem(present, key, entry, how);
	err = bpf_map_update_elem(previous, key, entry, how);
	if (err || phase == RESIZE_BEFORE)
		return err;
	err = bpf_map_update_elem(present, key, entry, how == BPF_EXIST ? BPF_ANY : how);
	if (err && how == BPF_NOEXIST)
		bpf_map_delete_elem(previous, key);
	return err;
}

/* The previous entry is deleted first: the agent looks it up after it has copied an entry, and deletes the copy if the entry no longer exists. If several
 * programs delete a key, one of them finds it in the previous map, and only this one gets success. */
static __always_inline int resize_delete(enum resize_map map, void *present, void *previous, const void *key)
{
	int err;

	if (!resize_phase(map))
		return bpf_map_delete_elem(present, key);
	err = bpf_map_delete_elem(previous, key);
	bpf_map_delete_elem(present, key);
	return err;
}
