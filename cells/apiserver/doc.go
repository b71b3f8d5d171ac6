// Package apiserver serves the REST API on a unix socket for the CNI plugin, the waggle command and Cilium's tools.
//
// It reads tables and calls [ipam.Allocator] and [endpoint.Manager]; it writes no table and owns nothing in the kernel except its socket. Handlers validate the
// request, call the other cell, and translate the result to the status codes and bodies of Cilium's API. Reads are served at once; requests that change
// endpoints or addresses wait until the state of the previous run is restored. A restart leaves the socket file, which the next run replaces.
package apiserver
