// Package setup prepares a node for the agent, and tries it out: it does what needs more rights than the agent has.
//
// It mounts the BPF file system, installs the CNI plugin, waits for the agent, attaches a namespace of its own through the
// installed plugin as a container runtime would, and reports the outcome. Then it gives its capabilities away. Each step may
// be repeated at any time; what a killed run has left is removed by the next one. This is the one package of the node's
// programs that starts another: the plugin, because what is tested is the program that runtimes start.
package setup
