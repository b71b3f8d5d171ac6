// Package cli implements the command waggle. It connects to the sockets of the agent on this node, prints readable text (or JSON and YAML for programs), and
// exits with a code: 0 success, 1 the agent is unhealthy or rejected the request, 2 the command line is invalid, 3 no agent answers.
package cli
