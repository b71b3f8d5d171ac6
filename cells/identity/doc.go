// Package identity assigns to each endpoint the identity number of its labels.
//
// It reads endpoints, cilium-identities and api-servers, and writes identities, endpoint-identities and desired-identities. A reconciler creates CiliumIdentity
// objects from desired-identities. The numbers of endpoints are stored in state files, so that a restart changes none of them, even without an API server. It
// owns nothing in the kernel.
package identity
