// Package identitygc deletes CiliumIdentities that no CiliumEndpoint refers to any more.
//
// It runs in the cluster role, while this replica leads. A round lists identities, then CiliumEndpoints, from a quorum. An
// identity that nobody refers to is given the time in an annotation, as Cilium's operator does; one that somebody refers to
// again loses it; one whose time is --identity-heartbeat-timeout ago is deleted, on the condition that it is still what was
// listed, after the CiliumEndpoints were listed once more. When the API server does not answer, nothing is deleted. An agent
// that takes an identity in the very moment in which it is deleted makes it again with the same number.
package identitygc
