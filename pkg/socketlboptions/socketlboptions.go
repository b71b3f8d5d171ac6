// Package socketlboptions holds the options of the translation of services at the socket, which several cells use.
package socketlboptions

// Options holds the checked values of the flags. It does not change while the agent runs.
type Options struct {
	Enabled        bool
	Cgroup         string // the control group whose sockets are translated; empty for the root group of the machine
	HostOnly       bool   // leave sockets of pods to the programs on their links
	BindProtection bool   // no process of the node binds a port of a service
}
