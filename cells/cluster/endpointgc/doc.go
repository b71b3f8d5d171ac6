// Package endpointgc deletes CiliumEndpoints whose Pod or node does not exist, and CiliumNodes of Waggle whose Node does not exist.
//
// It runs in the cluster role, while this replica is the leader. It deletes objects that no other component deletes: an agent deletes the CiliumEndpoints of
// its own pods, and Kubernetes deletes objects whose owner is deleted. A round lists the metadata of all objects with quorum reads. Objects that two rounds in
// a row find stale (three, if more than half of all objects are stale) are checked again and then deleted, with the precondition that they have not changed
// since the list. Table in: leadership. Table out: stale-objects (the state between rounds). Without a responsive API server nothing is deleted, and a
// restarted or new leader starts with the first round.
package endpointgc
