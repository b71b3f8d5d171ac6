// Package labels holds the keys and the text form of labels, and computes the labels of an endpoint and the subset that forms its security identity. Both
// computations are pure functions: maps hold
// "source:key" -> value throughout, and arguments are never changed.
package labels
