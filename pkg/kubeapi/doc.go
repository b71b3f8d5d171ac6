// Package kubeapi reaches the API server of a cluster. It is a thin layer over client-go's rest package with a scheme of
// its own: the typed clientset and shared informers would double the agent's memory.
package kubeapi
