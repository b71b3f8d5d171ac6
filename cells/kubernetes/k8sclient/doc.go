// Package k8sclient determines the addresses of the API servers and the credentials, and provides the client to all other cells.
//
// It reads flags, and a kubeconfig or the files of a ServiceAccount. Tables in: none. Table out: api-servers. It owns nothing in the kernel and nothing on
// disk. Where Kubernetes is off, the client is nil and the table stays empty; this is not an error.
package k8sclient
