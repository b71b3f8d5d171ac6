// Package policy says what network policies mean: it parses the policies of Kubernetes and of Cilium into one model, and
// [Evaluate] answers whether a subject and a peer may talk.
//
// Everything here is a pure function of its arguments. The compiler to map entries, explain, what-if and the tests share
// the model, so that there is one way to evaluate a policy.
package policy
