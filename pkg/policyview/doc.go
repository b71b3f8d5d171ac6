// Package policyview says what policies mean for packets that were, and for such that might be: why one was refused, whether
// two may talk, and what a policy that is not applied yet would change.
//
// Everything is answered by the reference evaluator from one snapshot of the agent's tables. The maps of the datapath are
// read only to say whether they agree.
package policyview
