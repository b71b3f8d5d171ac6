// Package config determines the value of each option of the agent, and the source of the value.
//
// The precedence is flag > environment > directory > default. The directory is a mounted ConfigMap with one file for each
// key. An unknown key is an error in flags and files, which names the nearest known key. In the environment it is only a
// warning, because Kubernetes adds its own variables. A key of Cilium that the agent does not implement is accepted, so
// that an existing ConfigMap can be mounted unchanged. If such a key protects something in Cilium, the agent of a node does
// not start unless --accept-unprotected names the key.
//
// The key tunnel of Cilium 1.14 and older sets routing-mode.
//
// A [Reader] compares the directory with the running process: it evaluates the files as the next start would, and sets no flag of the process.
//
// The effective values are set in the flag set, so that all readers of the flags, including hive, get them.
package config
