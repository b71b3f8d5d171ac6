/* Policy: what an endpoint's policy id permits. */
#pragma once

#include "reasons.h"

#define POLICY_ALLOW_ALL 1

/* policy_judge knows one policy that allows. Every other id, 0 above all, drops: what is unknown is not allowed. */
static __always_inline verdict policy_judge(__u32 policy)
{
	return policy == POLICY_ALLOW_ALL ? CONTINUE : DROP(FILE_POLICY, REASON_POLICY);
}
