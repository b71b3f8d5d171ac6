// Package driftledger records repairs of kernel objects that other programs changed.
//
// Each cell verifies its own objects: it reads them back, marks the rows that differ with
// [github.com/waggle-net/waggle/pkg/drift.Mark], and its reconciler repairs them. This module counts the findings. It is
// degraded by an object that has to be repaired repeatedly: another program writes it as well.
//
// Tables in: none. Table out: drift-repairs. It owns nothing in the kernel; after a restart all counts begin at 0.
package driftledger
