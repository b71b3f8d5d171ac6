// Package apiserver serves the REST API on a unix socket: what the CNI plugin, the waggle command and Cilium's tools call.
//
// It reads tables and calls [ipam.Allocator] and [endpoint.Manager]; it writes no table and owns nothing in the kernel but
// its socket. Handlers are thin: they check what came over the wire, call, and translate the outcome into the status codes
// and bodies that Cilium's API has. Reads are answered from the first moment; what changes endpoints or addresses waits
// until the state of the run before is restored. A restart leaves the old socket's file, which the next run replaces.
package apiserver
