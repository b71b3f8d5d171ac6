// Package ciliumv2 holds the objects of the group cilium.io, version v2 (slices: v2alpha1), that the agent reads and writes. Field names are
// Cilium's, so that its tools understand them; fields that nobody here uses are left out of the types and kept on the
// server by patching instead of replacing.
package ciliumv2
