// Package k8stables turns Kubernetes objects into rows. Its one source so far is "manifests", a directory of YAML and
// JSON files that is watched, so that an agent needs no API server.
//
// It writes k8s-nodes, k8s-pods (those of this node and those of no node), k8s-namespaces, k8s-services and
// k8s-networkpolicies; sources, which says whether these tables may be relied on; and manifests, which has a row for
// each document with what became of it. It owns nothing in the kernel and keeps nothing over restarts: everything is
// read again, and the tables are initialized in the commit of the first complete reading.
package k8stables
