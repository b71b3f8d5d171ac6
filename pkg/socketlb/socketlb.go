// Package socketlb says whether and for whom services are translated at the socket. Cells share it.
package socketlb

// Options is what was typed, checked. It never changes while the agent runs.
type Options struct {
	Enabled        bool
	Cgroup         string // the control group whose sockets are translated; empty is the topmost of the machine
	HostOnly       bool   // leave sockets of pods to the programs on their links
	BindProtection bool   // no process of the node binds a port of a service
}
