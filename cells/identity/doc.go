// Package identity gives each endpoint the number of its labels.
//
// It reads endpoints, cilium-identities and api-servers, and writes identities, endpoint-identities and
// desired-identities, of which a reconciler makes CiliumIdentity objects. Numbers that endpoints have are kept in a state
// file, so that a restart changes none of them, also when the API server is away. It owns nothing in the kernel.
package identity
