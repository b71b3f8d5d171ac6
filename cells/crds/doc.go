// Package crds compares the definitions of custom resources in the cluster with those that this version of the agent wants.
//
// It reads the metadata of each definition from the API server and the tables "api-servers" and "sources", and writes the
// table "crds": name, version wanted, version found, state. CiliumEndpointSlices matter only while "sources" says that they
// are read. What is missing or old makes the module Degraded, with the command that mends it. It changes nothing in the
// cluster, owns nothing in the kernel, and needs nothing of the run before. Without Kubernetes it does nothing.
package crds
