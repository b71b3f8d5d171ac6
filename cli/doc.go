// Package cli is the operator's command. It talks with the agent on this node over its sockets, prints what people can
// read (or JSON and YAML for programs), and ends with an exit code: 0 done, 1 the agent is not well or refused, 2 the
// command line is wrong, 3 nobody answers.
package cli
