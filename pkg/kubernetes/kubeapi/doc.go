// Package kubeapi is the client of the Kubernetes API server. It is a thin layer over client-go's rest package with its own scheme: the typed clientset
// and shared informers would double the agent's memory.
package kubeapi
