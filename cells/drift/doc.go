// Package drift keeps account of what others changed of ours in the kernel and the agent put right.
//
// Each cell looks after its own objects: it reads them back, marks the rows that differ with
// [github.com/waggle-net/waggle/pkg/drift.Mark], and its reconciler repairs them. What is found is counted here, and an
// object that has to be repaired again and again makes this module degraded: somebody else wants it otherwise.
//
// Table out: drift-repairs. It owns nothing in the kernel; after a restart all counts begin at 0.
package drift
