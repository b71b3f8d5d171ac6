// Package agentclient calls the agent over its unix socket, for the CNI plugin, the command waggle and tests. It does not import net/http: linking it costs a
// millisecond of processor time at each start of the plugin, a fifth of one run.
//
// Each call opens its own connection for one exchange of HTTP/1.0. The end of the connection marks the end of the response, so the package needs no transfer
// encodings. Errors name the attempted operation, the socket and a remedy.
package agentclient
