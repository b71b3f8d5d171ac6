// Package selftest reports whether the self-test could attach a namespace to the network of this node.
//
// "waggle-agent setup" creates a namespace, calls the installed plugin as a runtime does, pings, and writes a report to the state directory. This cell watches
// the file. Tables in: none. Table out: self-tests. It owns nothing in the kernel and writes no file. A report of a previous boot is ignored. A report of this
// boot stays valid after a restart of the agent.
package selftest
