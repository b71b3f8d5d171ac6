// Package sysctl keeps kernel settings of the network namespace at the values that features of the agent want.
//
// Tables in and out: sysctls (its own; features contribute through [sysctls.Writer]), with its status.
//
// It writes files below <procfs>/sys/net and reads them back: the kernel may clamp or refuse a value without an error.
// What a setting was is kept in <state-dir>/sysctls before it is changed for the first time, for "waggle cleanup" alone: a
// setting that nobody wants any more stays as it is, and after a restart the same values are wanted again. Where that cannot be
// kept, nothing is changed. What somebody else changes is put back: forwarding and reverse path filters, which the kernel
// announces, at once, the others when they are read again, every --verify-interval.
package sysctl
