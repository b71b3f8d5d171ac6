// Package k8stables turns Kubernetes objects into rows. It has two sources, of which one is in use: "reflectors" follows the
// API server and keeps a copy on disk to begin from, "manifests" reads a directory of YAML and JSON files, so that an agent
// needs no API server.
//
// It writes k8s-nodes, k8s-pods (those of this node), k8s-namespaces, k8s-services, k8s-endpointslices, k8s-networkpolicies,
// k8s-ingresses and cilium-nodes, -endpoints, -identities, -networkpolicies and -cidrgroups; cilium-endpointslices, cilium-endpoints-own and -listed, of which
// cilium-endpoints is made when slices are read; sources, which says whether these tables may be relied on; manifests and k8s-rejects, which say what is wrong with objects. It owns nothing in the kernel.
//
// Package k8sobjects makes rows of objects. The parts: tables writes them, reflectors and snapshot are the source that
// follows the API server; the manifests are here.
package k8stables
