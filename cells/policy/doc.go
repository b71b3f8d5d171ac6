// Package policy compiles network policies and keeps the maps of them, so that nobody ever meets half a policy.
//
// One loop does it, in an order that is its point: it takes in what has changed, numbers the address ranges that policies
// name, compiles what each endpoint of this node has, writes the entries of that, then the ranges, and only then publishes
// which policy each endpoint has and as whom it may be known. What is not needed any more goes when nobody can have it. The
// maps are written here and not by reconcilers, because the order among them is a matter of security: see [store].
//
// Tables: reads k8s-networkpolicies, cilium-networkpolicies, cilium-cidrgroups, k8s-namespaces, k8s-pods, k8s-endpointslices, node-addresses,
// cilium-endpoints, cilium-identities, ipcache, k8s-nodes, cilium-nodes, nodes, sources, identities, endpoint-identities, endpoints and endpoint-facts (what the datapath has taken over);
// writes policies, policy-entries, policy-classes, named-cidrs, endpoint-policies and policy-progress.
//
// Kernel state: every entry of the maps policy, policy_ranges, cidrs, known_identities and identity_classes, and the second slot of the map epochs; nobody else
// writes them. Entries that somebody else changes are put right when the maps are read back, every --verify-interval.
//
// After a restart the maps go on enforcing what the earlier run wrote, under its policy ids, until everything is known and
// compiled. Address ranges keep their numbers. An id of that run that says what its endpoints shall have is taken over, so that
// what has not changed needs no room beside itself; new ids begin above all that the maps or slots of endpoints name. An
// endpoint whose policy has changed and does not fit keeps what that run enforced. Its ids go when no endpoint has them.
package policy
