// Package heartbeat tells a loop that hangs from one that has nothing to do.
//
// A loop is a job that is made by [Add] or [AddTimer], or a reconciler that is made by [Register] instead of package
// reconciler's, with the same arguments. A job counts as at work from its start. It says [Idle] before it waits, which may
// take forever, and goes on with a [Snapshot] of the tables that it follows, or with [Busy]. A [Monitor] looks at all loops
// each second:
//
//   - A loop that works for longer than it may (40 s without a word) hangs: a lock, a kernel call, a channel nobody reads.
//   - A loop that waits although a table which it follows has changed 30 s ago has missed a change.
//   - A timer that is 30 s late never fires.
//   - A row that waits for its reconciler for 30 s, while that attempts nothing, was forgotten.
//   - A write transaction that is held for 10 s keeps everybody from its tables.
//
// What could hang in place of a loop is not used to judge it: loops leave marks in atomic values, tables are read from
// snapshots, and no lock of a table is ever taken. Time is counted in steps of the monitor and each step counts as 2 s at
// most ([Monitor.Step]), so that a process that was stopped and a machine that slept make no wedge. A CPU that others have is
// not told apart; the limits leave room for it.
//
// Without a monitor, as in most tests of cells, all of this does nothing.
package heartbeat
