package kube

import (
	"k8s.io/client-go/rest"
)

// Config is for clients of client-go, as admin.
func (c *Cluster) Config() *rest.Config {
	return &rest.Config{Host: c.URL, BearerToken: AdminToken, Dial: c.Dial, TLSClientConfig: rest.TLSClientConfig{CAData: c.caPEM}}
}
