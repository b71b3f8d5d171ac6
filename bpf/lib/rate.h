/* The rate of an event in a tick. */
#pragma once

#include <linux/types.h>

struct rate {
	__u32 tick;
	__u32 count; /* in this tick */
};

/* rate_exceeded counts one event, and reports whether the limit of this tick was exceeded. Without a rate nothing is limited. CPUs race when a tick begins:
 * some events may count in neither tick. */
static __always_inline int rate_exceeded(struct rate *rate, __u32 now, __u32 limit)
{
	if (!rate)
		return 0;
	if (rate->tick != now) {
		rate->tick = now;
		rate->count = 0;
	}
	return __sync_fetch_and_add(&rate->count, 1) >= limit;
}
