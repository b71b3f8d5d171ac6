package bpf

import "slices"

// The layout of endpoint_facts that the release before has: the same fields without shapes, audit and policy revision.
//
//	bytes  0-7  ifindex, identity
//	bytes  8-15 policy ids of ingress and egress
//	bytes 16-19 revision
//	bytes 20-75 all from the id on
const (
	formerFactsSize = 76
	factsSize       = 104
	factsSecond     = 16 // where the egress policy stands, behind the ingress policy and its shape
	factsRevision   = 44 // from where on both are the same
)

// factsForward makes the present facts of the former ones, whose policy ids were 0 and 1 only.
func factsForward(key, value []byte) ([]byte, []byte, bool) {
	if len(value) != formerFactsSize {
		return nil, nil, false
	}
	out := make([]byte, factsSize)
	copy(out, value[:12])
	copy(out[factsSecond:], value[12:16])
	copy(out[factsRevision:], value[16:])
	return key, out, true
}

// factsBack makes the former facts of the present ones. The release before knows no policies: what is not dropped whole
// is allowed whole.
func factsBack(key, value []byte) ([]byte, []byte, bool) {
	if len(value) != factsSize {
		return nil, nil, false
	}
	return key, slices.Concat(value[:8], allOrNothing(value[8:12]), allOrNothing(value[factsSecond:factsSecond+4]),
		value[factsRevision:]), true
}

// allOrNothing turns a policy id in the host's order into 1, unless it is 0.
func allOrNothing(id []byte) []byte {
	if slices.Equal(id, []byte{0, 0, 0, 0}) {
		return id
	}
	return []byte{1, 0, 0, 0}
}
