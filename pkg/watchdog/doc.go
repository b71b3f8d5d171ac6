// Package watchdog is a watchdog that distinguishes stalled loops from idle ones.
//
// A loop is a job that is created with [Add] or [AddTimer], or a reconciler that is created with [Register] in place of
// reconciler.Register, with the same arguments. A job counts as busy from its start. It calls [Idle] before it waits, which
// may take any time, and then [Snapshot] with the tables that it follows, or [Busy]. Package loop makes these calls for
// its loops. A [Monitor] checks all loops each second:
//
//   - A loop that is busy for 40 s without another call is stalled: on a lock, a kernel call, or a channel without reader.
//   - A loop that is idle although a table that it follows changed 30 s ago has missed a change.
//   - A timer that is 30 s late has stopped.
//   - A row that has been pending for 30 s, while its reconciler attempts nothing, was forgotten.
//   - A write transaction that is open for 10 s blocks all other writers of its tables.
//
// The monitor depends on nothing that can stall with a loop: loops store their state in atomic values, the monitor reads
// tables from snapshots, and it takes no table lock. It counts time in its own steps, and each step counts as 2 s at most
// ([Monitor.Step]), so that a stopped process or a suspended machine causes no report. It cannot detect that other
// processes use the CPU; the limits include a margin for that.
//
// Without a monitor, as in most tests of cells, the functions of this package have no effect.
package watchdog
