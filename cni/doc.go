// Package cni attaches pods to the network and detaches them when a container runtime asks. It is all that the program
// waggle-cni does: it parses what the runtime says, asks the agent for addresses, makes the link, and waits until the
// agent has the pod's endpoint in the kernel.
//
// The plugin keeps no state. What it makes is found again by name: the host end of a link is named by
// [podlink.HostName] and carries the link group [podlink.Group]; a DEL moves it to [podlink.DeletedGroup], and the agent
// deletes that group. A DEL while the agent is away is left in the deletion queue ([deletequeue]).
//
// A plugin that is killed in the middle of an ADD leaves a link of that group without an endpoint, which passes no
// packet and goes with the DEL that runtimes send after a failed ADD, with the pod's namespace, or when the agent looks for
// such links; and an allocation that the agent takes back after ten minutes.
package cni
