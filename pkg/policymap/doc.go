// Package policymap compiles policies into the entries that the datapath looks up, and keeps them up as policies,
// identities, named CIDRs and endpoints change.
//
// A [Resolver] is told of every change; [Resolver.Compile] then says what holds for one endpoint, as two [Compiled], one
// per direction, and two more when policies in audit mode select it. Endpoints with the same policies share them, and
// nothing is computed anew that did not change. A [Compiled] never changes, answers as the datapath would
// ([Compiled.Lookup]), and tells how it differs from another ([Compiled.Diff]).
//
// There is no kernel here and no table: what to write where, and in which order, is decided by who calls.
package policymap
