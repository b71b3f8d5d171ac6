// Package endpointgc deletes CiliumEndpoints whose Pod or whose node is gone, and CiliumNodes of Waggle whose Node is gone.
//
// It runs in the cluster role, while this replica leads. It is for what nobody else deletes: an agent deletes the
// CiliumEndpoints of its own pods, and Kubernetes those whose owner is deleted. A round lists the metadata of all objects
// from a quorum; what two rounds in a row find stale (three, when that is more than half of all) is looked up once more and
// then deleted, on the condition that it is still what was listed. The table stale-objects is the memory of the rounds. When
// the API server does not answer, nothing is deleted, and a restarted or new leader begins with the first round.
package endpointgc
