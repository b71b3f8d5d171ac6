package bpf

import "slices"

// The layout of endpoint_facts in the previous release: the same fields without shapes, audit and policy revision.
//
//	bytes  0-7  ifindex, identity
//	bytes  8-15 policy ids of ingress and egress
//	bytes 16-19 revision
//	bytes 20-75 all fields from the id on
const (
	previousFactsSize = 76
	factsSize         = 104
	factsSecond       = 16 // offset of the egress policy, after the ingress policy and its shape
	factsRevision     = 44 // both layouts are equal from this offset on
)

// factsForward converts previous facts to current ones. Their policy ids are only 0 and 1.
func factsForward(key, value []byte) ([]byte, []byte, bool) {
	if len(value) != previousFactsSize {
		return nil, nil, false
	}
	out := make([]byte, factsSize)
	copy(out, value[:12])
	copy(out[factsSecond:], value[12:16])
	copy(out[factsRevision:], value[16:])
	return key, out, true
}

// factsBack converts current facts to previous ones. The previous release has no policies: an endpoint that drops everything keeps doing so, and all others
// allow everything.
func factsBack(key, value []byte) ([]byte, []byte, bool) {
	if len(value) != factsSize {
		return nil, nil, false
	}
	return key, slices.Concat(value[:8], allOrNothing(value[8:12]), allOrNothing(value[factsSecond:factsSecond+4]),
		value[factsRevision:]), true
}

// allOrNothing converts a policy id in host byte order to 1, unless it is 0.
func allOrNothing(id []byte) []byte {
	if slices.Equal(id, []byte{0, 0, 0, 0}) {
		return id
	}
	return []byte{1, 0, 0, 0}
}
