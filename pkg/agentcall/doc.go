// Package agentcall implements the few calls of the CNI plugin to the agent. It uses neither net/http nor the generated client of package client: linking
// them costs a millisecond of processor time at each start of the program, a fifth of one run of the plugin.
//
// Each call opens its own connection for one exchange of HTTP/1.0. The end of the connection marks the end of the response, so the package needs no transfer
// encodings.
package agentcall
