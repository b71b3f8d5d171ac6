// Package apiserver serves the REST API on a unix socket for the CNI plugin, the waggle command and Cilium's tools.
//
// It calls [ipam.Allocator] and [endpoint.Manager], and owns nothing in the kernel except its socket. Handlers validate the request, call the other cell, and
// translate the result to the status codes and bodies of Cilium's API. Reads are served at once; requests that change endpoints or addresses wait until the
// state of the previous run is restored. A restart leaves the socket file, which the next run replaces.
//
// Tables in: api-servers, bpf-maps, cni-config, devices, endpoint-identities, endpoint-states, flows, health, ipam-addresses, local-node, mtus, node-health,
// node-ids, nodes, services, unmanaged-pods, unmasqueraded, and those of [readiness.Tables] and [policyexplain.Tables]; any other table by its name (GET
// /statedb). Tables out: none.
package apiserver
