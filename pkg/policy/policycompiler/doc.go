// Package policycompiler compiles policies into the entries that the datapath looks up, and updates the entries when policies, identities, named CIDRs and endpoints
// change.
//
// A [Resolver] receives every change. [Resolver.Compile] returns two [Compiled] for an endpoint, one per direction, and one more for each direction in which a
// policy in audit mode applies. Endpoints with the same policies share them, and only changed results are computed again. A [Compiled] is immutable, evaluates
// connections as the datapath does ([Compiled.Lookup]), and computes the difference to another one ([Compiled.Diff]).
//
// The package accesses neither the kernel nor tables. The caller decides which entries to write to which map, and in which order.
package policycompiler
