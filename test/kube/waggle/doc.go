// Package waggle tests Waggle on real Kubernetes nodes: with the DaemonSet, installed as users install it, or with the agent as a process if a test stops and
// starts it often.
package waggle
