package kube

import (
	"k8s.io/client-go/rest"
)

// Config returns a client-go configuration with admin rights.
func (c *Cluster) Config() *rest.Config {
	return &rest.Config{Host: c.URL, BearerToken: AdminToken, Dial: c.Dial, TLSClientConfig: rest.TLSClientConfig{CAData: c.caPEM}}
}
