// Package selftest tells the agent whether a real attach went through on this node.
//
// "waggle-agent setup" makes a namespace, calls the installed plugin as a runtime does, pings, and leaves a report in the
// state directory. This cell watches the file and fills the table self-tests. It owns nothing in the kernel and writes no
// file. A report of an earlier boot counts as none. After a restart of the agent the report of this boot counts again: the
// node has not changed since.
package selftest
