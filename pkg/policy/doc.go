// Package policy parses the network policies of Kubernetes and Cilium into one model. [Evaluate] computes the verdict for a connection between a subject
// and a peer.
//
// Results depend only on the arguments. The compiler to map entries, explain, what-if and the tests share the model, so all of them interpret a policy
// alike.
package policy
