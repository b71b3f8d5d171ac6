// Package labels says which labels an endpoint has and which of them make its security identity. Both are pure
// functions: labels are "source:key" -> value throughout, and maps that are given are never changed.
package labels
