// Package config finds the value of each option of the agent and says where it came from.
//
// The precedence is flag > environment > directory > default. The directory is a mounted ConfigMap: one file for each
// key. A key that nobody knows is an error in flags and files, which names the nearest known key, and a warning in the
// environment, where Kubernetes puts variables of its own. A key that Cilium knows and that means nothing here is
// accepted, so that an existing ConfigMap can be mounted as it is. One that protects something in Cilium ends the start
// of the agent of a node, unless --accept-unprotected names it.
//
// The key tunnel of Cilium 1.14 and older sets routing-mode.
//
// Values end up in the flag set itself: whoever reads flags, hive among them, sees the winner and needs no second rule.
package config
