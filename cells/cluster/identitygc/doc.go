// Package identitygc deletes CiliumIdentities that no CiliumEndpoint refers to any more.
//
// It runs in the cluster role, while this replica leads. A round lists identities, then CiliumEndpoints, with quorum reads. The replica remembers in memory
// since when an identity has no reference. An identity with a reference is forgotten. The replica deletes an identity that has had no reference for
// --identity-heartbeat-timeout and in at least two rounds in a row, after it has listed the CiliumEndpoints again, and only if the identity is unchanged since
// the list. When the API server does not answer, nothing is deleted. Table in: leadership. Table out: identity-rounds. An agent that starts to use an identity
// at the time of its deletion creates it again with the same number.
package identitygc
