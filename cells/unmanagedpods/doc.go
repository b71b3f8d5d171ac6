// Package unmanagedpods finds pods of this node that run without an endpoint: those that were there before the agent.
//
// It reads k8s-pods and endpoints and writes unmanaged-pods. It owns nothing in the kernel and changes no pod: only a
// restart of the pod gives it our network.
package unmanagedpods
