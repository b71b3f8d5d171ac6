// Package agentcall makes the few calls of the CNI plugin to the agent. It does without net/http and the generated
// client, which package client offers to everybody else: merely having them in a program costs a millisecond of
// processor time at each start, a fifth of what one run of the plugin takes.
//
// Each call is a connection of its own and one exchange of HTTP/1.0, whose answers end with the connection and so need
// no knowledge of transfer encodings.
package agentcall
