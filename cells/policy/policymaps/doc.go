// Package policymaps compiles network policies and writes their BPF maps. No packet is evaluated by a partly written policy.
//
// One loop does this in a fixed order: it reads the changes, numbers the address ranges that policies name, compiles the policies of each endpoint of this
// node, writes their entries, then writes the ranges, and only then publishes the policies of each endpoint and the identity by which peers may know it.
// Unused entries are removed when no endpoint can have them. The cell writes the maps itself and not with reconcilers, because their order is relevant to
// security: see [store]. Its methods in write.go decide the order of the entries, and kernel.go has the calls that write them.
//
// Tables in: k8s-networkpolicies, cilium-networkpolicies, cilium-cidrgroups, k8s-services, k8s-namespaces, k8s-pods, k8s-endpointslices, node-addresses,
// cilium-endpoints, cilium-identities, ipcache, k8s-nodes, cilium-nodes, nodes, sources, identities, endpoint-identities, endpoints, attachments,
// endpoint-facts (the state that the datapath has applied). Tables out: policies, policy-entries, policy-classes, named-cidrs, endpoint-policies,
// policy-progress.
//
// Kernel state: every entry of the maps policy, policy_ranges, cidrs, known_identities and identity_classes, and slot 1 of the map epochs. It is the only
// writer. Entries that another program changes are repaired by verification, every --verify-interval.
//
// After a restart the maps enforce the policies of the previous run, under its policy ids, until everything is known and compiled. Address ranges keep their
// numbers. An id of the previous run is reused if its entries equal the desired policy of its endpoints, so unchanged policies need no second copy in the
// maps. New ids are above all ids that the maps or slots of endpoints name. An endpoint whose policy has changed and does not fit keeps the policy of the
// previous run. Ids of the previous run are removed when no endpoint has them.
package policymaps
