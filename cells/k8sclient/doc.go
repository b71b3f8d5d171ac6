// Package k8sclient says where the API server is and who we are, and gives every other cell a client that knows both.
//
// It reads flags, a kubeconfig or the files of a ServiceAccount, and writes api-servers. It owns nothing in the kernel
// and nothing on disk. Where Kubernetes is off, the client is nil and the table stays empty; that is no error.
package k8sclient
