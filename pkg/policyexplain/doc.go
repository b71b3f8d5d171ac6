// Package policyexplain explains the effect of policies on recorded and on hypothetical packets: why a packet was dropped, whether two parties may connect,
// and which verdicts a policy would change that is not applied yet.
//
// The reference evaluator computes every answer from one snapshot of the agent's tables. The maps of the datapath are read only to report whether they
// agree.
package policyexplain
