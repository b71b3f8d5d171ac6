// Package sysctl keeps kernel settings of the network namespace at the values that features of the agent request.
//
// Tables in: none. Table out: sysctls (with the status of each row; features contribute through [sysctls.Writer]).
//
// The cell writes files below <procfs>/sys/net and verifies each write, because the kernel may clamp or reject a value without an error. Before the first
// change of a setting it records the original value in <state-dir>/sysctls, for "waggle cleanup"; if the record cannot be written, the setting is not changed.
// A setting that no feature requests any more keeps its value. After a restart features request their settings again. The cell restores a setting that another
// program changes: forwarding and reverse path filters at once, because the kernel announces their changes, and other settings at the next verification
// (--verify-interval).
package sysctl
