// Package ciliumv2 holds the objects of the group cilium.io, version v2 (slices: v2alpha1), that the agent reads and writes. Field names are
// Cilium's, so that its tools can read the objects. The types omit fields that the agent does not use. These fields are kept on
// the server, because the agent patches objects and does not replace them.
package ciliumv2
