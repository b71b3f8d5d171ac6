// Package crds defines the custom resources of group cilium.io that the agent reads and writes: their names, their schema
// and its version. "waggle install" prints them, and the agent compares those of the cluster with these.
//
// Fields that [github.com/waggle-net/waggle/pkg/ciliumv2] knows are described and checked. Parts of Cilium's objects that
// mean nothing here are named and kept as they are, so that objects which Cilium's tools write are accepted whole, while a
// misspelt field is not.
package crds
