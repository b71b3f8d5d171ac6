// Package waggle holds the tests of Waggle on real Kubernetes nodes: its DaemonSet, installed as users install it, or the
// agent alone where a test wants to end and start it quickly.
package waggle
