// Package sysctl keeps kernel settings of the network namespace at the values that features of the agent want.
//
// Tables in and out: sysctls (its own; features contribute through [sysctls.Writer]), with its status.
//
// It writes files below <procfs>/sys/net and reads them back: the kernel may clamp or refuse a value without an error.
// It keeps no record of earlier values, so a setting that nobody wants any more stays as it is; there is nothing to
// prune, and after a restart the same values are wanted again. Every 10 minutes all are read again, which repairs what
// somebody else changed.
package sysctl
