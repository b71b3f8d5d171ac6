// Package identityallocator assigns to each endpoint the identity number of its labels.
//
// Tables in: endpoints, cilium-identities, api-servers. Tables out: identities, endpoint-identities, desired-identities. A reconciler creates CiliumIdentity
// objects from desired-identities. The numbers of endpoints are stored in state files, so that a restart changes none of them, even without an API server. It
// owns nothing in the kernel.
package identityallocator
