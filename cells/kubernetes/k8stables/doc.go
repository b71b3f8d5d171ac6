// Package k8stables provides Kubernetes objects as rows. It has two sources, of which one is in use: "reflectors" follows the API server and keeps a
// copy on disk for the next start; "manifests" reads a directory of YAML and JSON files, so that an agent needs no API server.
//
// Tables in: none. Tables out: k8s-nodes, k8s-pods (pods of this node), k8s-namespaces, k8s-services, k8s-endpointslices, k8s-networkpolicies,
// cilium-nodes, cilium-endpoints, cilium-identities, cilium-networkpolicies, cilium-cidrgroups; cilium-endpointslices, cilium-endpoints-own and
// cilium-endpoints-listed (the inputs of cilium-endpoints while slices are read); sources (the state of each of these tables); manifests and k8s-rejects (the
// errors in objects). The package owns nothing in the kernel.
//
// Package k8sobjects converts objects into rows. Package tables writes the rows, packages reflectors and snapshot are the source that follows the API
// server, and this package reads the manifests.
package k8stables
