// Package crdcheck compares the definitions of custom resources in the cluster with the versions that this agent needs.
//
// Tables in: api-servers, sources. Table out: crds, with name, wanted version, found version and state. The cell reads the metadata of each
// definition from the API server; the definition of CiliumEndpointSlices only while sources shows that slices are read. A missing or old definition
// makes the module Degraded, with the command that repairs it. The cell changes nothing in the cluster, owns nothing in the kernel, and uses no state
// of a previous run. Without Kubernetes it does nothing.
package crdcheck
