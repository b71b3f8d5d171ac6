// Package crds defines the custom resources of group cilium.io that the agent reads and writes: their names, their schema
// and its version. "waggle install" prints the definitions, and the agent compares them with the definitions in the cluster.
//
// The schemas describe and validate the fields of [github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2]. They name other fields of
// Cilium's objects and keep the values unchanged, so that objects of Cilium's tools are accepted completely, but a misspelt
// field is not.
package crds
