// Package policystatus tells people what of their policies is not enforced: by the condition Valid of Cilium's policies and by
// Events on policies of every kind.
//
// It runs in the cluster role, while this replica leads, and is the only one that writes them, so that a thousand agents do
// not. It says what agents can enforce: the flags by which a node enforces less are that node's own and not known here. One
// job for each kind of object lists and follows the objects, parses them as agents do, and writes what is to be said into the
// table policy-statements; a reconciler says it. Another job fills the table policy-cidrgroups; when a group changes to which a policy
// refers, the policies are listed again. Until groups were listed under this lead, nothing is said of policies that refer to some. The row of an object is renewed only when the object or what is to be said
// changes: whoever else writes the condition is answered once and not fought. A statement that stands there already costs no
// request, so a restart among thousands of policies is quiet. The objects are the only memory.
//
// It owns, in Kubernetes, the condition of type Valid in the status of CiliumNetworkPolicies and
// CiliumClusterwideNetworkPolicies, and Events with the reason [EventReason]; nothing in the kernel.
package policystatus
