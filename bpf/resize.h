/* Maps of flows that get another size. Programs of another generation have the former map and cannot be changed, so while hooks are replaced all programs use that
 * one, and programs that are loaded for the change read it on a miss and write to it. When they run on every hook, they write to both maps while the agent copies
 * the entries to the present one. No entry is ever in one map of which a program reads only the other. Programs that are loaded for no change have none of this. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

/* The number of the change of size that the programs are loaded for, 0 for none. */
volatile const __u32 resize_number = 0;

/* Maps of flows. The bits stand in resize.go. */
enum resize_map {
	RESIZE_CT_EST4 = 1,
	RESIZE_CT_EST6 = 2,
	RESIZE_NAT4 = 4,
	RESIZE_NAT6 = 8,
};

/* The maps that get another size in that change. Of any other one the former map is the present one, a second write would fail on the first, and the verifier
 * removes the code for a change. */
volatile const __u32 resize_maps = 0;

/* RESIZE_BEFORE: the present map is empty. RESIZE_DURING: the former map has every entry, and the present one what was copied or changed since. RESIZE_NONE:
 * the present map has every entry. Between two of them the agent waits until all running programs have ended. */
enum resize_phase {
	RESIZE_NONE = 0,
	RESIZE_BEFORE = 1,
	RESIZE_DURING = 2,
};

#define RESIZE_PHASES 4 /* the value of resize_state: its change's number times this, plus the phase */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} resize_state SEC(".maps");

/* The key of resize_state does not stand on the stack, of which callers have little. */
static const __u32 resize_key = 0;

/* resize_phase returns the phase of the change that the programs are loaded for, as far as it is one of the map. For programs of a change that has ended it is RESIZE_NONE, also after another one
 * has begun: their present map is the former one of that. */
static __always_inline __u32 resize_phase(enum resize_map map)
{
	__u32 *state;

	if (!(resize_maps & map))
		return RESIZE_NONE;
	state = bpf_map_lookup_elem(&resize_state, &resize_key);
	return state && *state / RESIZE_PHASES == resize_number ? *state % RESIZE_PHASES : RESIZE_NONE;
}

/* The following do with a key of two maps what helpers do with one. The present map is read first: it has the newer entry when both have one. */
static __always_inline void *resize_lookup(enum resize_map map, void *present, void *former, const void *key)
{
	void *entry = bpf_map_lookup_elem(present, key);

	return !entry && resize_phase(map) ? bpf_map_lookup_elem(former, key) : entry;
}

/* The results of these two are ints: operations of maps return ints before Linux 6.4, where the verifier replaces the helper by a call of the operation, and the upper half
 * of the register is then not the sign. */

/* The former map decides whether a key exists. The agent may not have copied the entry yet, so an entry that has to exist may be missing in the present map. An entry
 * that must not exist may be there: what the agent copied and deletes right away, or one of a program that knows already that the change has ended. Then, and when
 * there is no room, the key is given up in the former map as well. */
static __always_inline int resize_update(enum resize_map map, void *present, void *former, const void *key, const void *entry, __u64 how)
{
	__u32 phase = resize_phase(map);
	int err;

	if (!phase)
		return bpf_map_update_elem(present, key, entry, how);
	err = bpf_map_update_elem(former, key, entry, how);
	if (err || phase == RESIZE_BEFORE)
		return err;
	err = bpf_map_update_elem(present, key, entry, how == BPF_EXIST ? BPF_ANY : how);
	if (err && how == BPF_NOEXIST)
		bpf_map_delete_elem(former, key);
	return err;
}

/* The former entry is deleted first: the agent looks for it after it has copied an entry, and deletes the copy of one that is gone. Of several that delete a key, one
 * finds it in the former map, and that one is told so. */
static __always_inline int resize_delete(enum resize_map map, void *present, void *former, const void *key)
{
	int err;

	if (!resize_phase(map))
		return bpf_map_delete_elem(present, key);
	err = bpf_map_delete_elem(former, key);
	bpf_map_delete_elem(present, key);
	return err;
}
