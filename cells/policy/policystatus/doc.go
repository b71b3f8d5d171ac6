// Package policystatus reports which parts of policies are not enforced: in the condition Valid of Cilium's policies, and in Events on policies of every kind.
//
// It runs in the cluster role, in the leading replica, so that not every agent writes the same reports. A report states what agents can enforce: flags with
// which a node enforces less are that node's own, and this role does not know them. One job for each kind of object lists and follows the objects, parses them
// as agents do, and writes statements; a reconciler writes them to the API server. Other jobs list groups and Services. When a group changes to which a policy
// refers, the policies are listed again; when a Service changes to which a policy refers or among which it chooses by labels, that policy is read again, at most
// once in 30 s. EndpointSlices are not read: problems with the addresses of Services without a selector are reported by nodes only. No object is kept. Until the
// leader has listed the groups or Services, policies that refer to one have no statement.
//
// A row is written again only when its statement changes or another replica leads. Until then a condition that another program overwrites is not restored. A
// valid policy whose condition is up to date costs no request, so a restart with thousands of policies is cheap. The objects are the only persistent state.
//
// It owns, in Kubernetes, the condition of type Valid in the status of CiliumNetworkPolicies and CiliumClusterwideNetworkPolicies, and Events with the reason
// [EventReason]; nothing in the kernel.
//
// Table in: leadership. Tables out: policy-statements, policy-cidrgroups, policy-services.
package policystatus
