// Package setup prepares a node for the agent and tests it. It runs the steps that need more privileges than the agent has.
//
// It mounts the BPF file system, installs the CNI plugin, waits for the agent, attaches its own namespace with the installed plugin like a container
// runtime, and reports the result. Then it drops its capabilities. Each step may be repeated at any time; the next run removes the remains of a killed
// one. It is the only package of the node's programs that starts another program: the plugin, because the test covers the program that runtimes start.
package setup
