// Package cni attaches pods to the network and detaches them on behalf of a container runtime. It implements the program waggle-cni: it parses the runtime's
// input, requests addresses from the agent, creates the link, and waits until the agent has written the endpoint's entries to the kernel.
//
// The plugin is stateless. It finds its resources by name: the host end of a link is named by [podlink.HostName] and has the link group [podlink.Group]; a
// DEL moves it to [podlink.DeletedGroup], and the agent deletes that group. A DEL while no agent runs is stored in the deletion queue ([deletequeue]).
//
// A plugin that is killed during an ADD leaves a link of that group without an endpoint, which passes no packets. The link is deleted by the DEL that
// runtimes send after a failed ADD, with the pod's namespace, or by the agent's scan for such links. The agent releases the allocated addresses after ten
// minutes.
package cni
