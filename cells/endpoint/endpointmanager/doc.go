// Package endpointmanager attaches pods to the network: it takes requests of the API, checks them against the existing endpoints, and keeps each endpoint as a
// row and as a file.
//
// Tables in: endpoint-states (to wait until an endpoint is ready), k8s-pods and k8s-namespaces (labels), local-node, devices, sources and api-servers (whether
// pods have ended). Tables out: endpoints, collected-endpoints.
//
// Kernel state: none; it only checks whether links and namespaces exist. On disk it owns <state-dir>/endpoints.
//
// After a restart the start hook reads the files before any address can be allocated: it holds ids and addresses first and then inserts the rows. A file that
// cannot be used becomes a quarantined row with the fields that could be read.
//
// An endpoint whose pod has ended without a DEL is removed by proofs. There are three, from independent sources. Link: neither its index nor its name is on the
// node. Namespace: the path of ADD has none or another one, in the directory that the agent saw at ADD; or the kernel was booted again. Pod: a responsive API
// server has no pod of that name and UID on this node, or a younger sandbox of the pod is attached. An endpoint is removed when the same two proofs hold in
// each scan of an interval and neither its link nor its namespace exists. An existing link or namespace outweighs all proofs, so the link must always be gone.
// A state that the agent cannot observe proves nothing.
package endpointmanager
