package policycompiler

import "slices"

// size is a number of entries of the maps policy and policy_ranges.
type size struct{ entries, ranges int }

// exceeds reports whether a size is above a limit; a limit of 0 is none.
func (s size) exceeds(limit size) bool {
	return limit.entries > 0 && s.entries > limit.entries || limit.ranges > 0 && s.ranges > limit.ranges
}

// SetLimit sets the largest number of entries of one result for the map policy and for policy_ranges; 0 for no limit. It must be called before the first
// Compile. A result with more is [Compiled.TooLarge].
func (r *Resolver) SetLimit(entries, ranges int) { r.limit = size{entries, ranges} }

// ruleCookies holds the cookies of the rules of a rule set, and counts the entries that are built with them. Beyond the limit no entries are built: a few rules
// can have millions, one for each port and each selected identity.
type ruleCookies struct {
	of    []uint32 // by index of the rule, followed by [CookieNotIsolated]
	limit size
	built size // since the rule set was last compiled
}

func (c *ruleCookies) count(entries []entry) []entry {
	for _, e := range entries {
		if (Key{PortBits: e.bits}).IsRange() {
			c.built.ranges++
		} else {
			c.built.entries++
		}
	}
	return entries
}

func (c *ruleCookies) exceeded() bool { return c.built.exceeds(c.limit) }

// completed returns c without entries if it is a new result above the limit.
func (set *ruleset) completed(c *Compiled) *Compiled {
	if c.allowsAll || c == set.compiled {
		return c // shared
	}
	c.namespace = set.namespace
	entries, ranges := c.Len()
	if (size{entries, ranges}).exceeds(set.cookies.limit) || set.cookies.exceeded() {
		c.groups, c.tooLarge = nil, true
	}
	return c
}

// TooLarge reports whether the policies need more entries than [Resolver.SetLimit] allows. Then there are no entries, and [Compiled.Len] is the number of
// entries that were counted before the limit was exceeded.
func (c *Compiled) TooLarge() bool { return c.tooLarge }

// Denies reports whether a rule denies.
func (c *Compiled) Denies() bool {
	return slices.ContainsFunc(c.rules, func(r *rule) bool { return r.Deny })
}

// sameRules reports whether c and o, one of which is too large, mean the same.
func (c *Compiled) sameRules(o *Compiled) bool {
	return c.tooLarge == o.tooLarge && c.isolated == o.isolated && c.nested == o.nested && c.namespace == o.namespace && slices.Equal(c.rules, o.rules)
}
