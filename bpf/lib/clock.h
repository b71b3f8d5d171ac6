/* The unit of time in map entries. */
#pragma once

#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#define CT_TICK_SHIFT 30

/* ct_now is the monotonic clock, as of the last timer tick, in ticks of 2^30 ns. */
static __always_inline __u32 ct_now(void) { return bpf_ktime_get_coarse_ns() >> CT_TICK_SHIFT; }
