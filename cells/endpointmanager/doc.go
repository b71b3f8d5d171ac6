// Package endpointmanager says which attachments of pods to the network are wanted: it takes requests of the API,
// checks them against what exists, and keeps each endpoint as a row and as a file.
//
// Tables in: endpoint-states (to wait until an endpoint is ready), k8s-pods and k8s-namespaces (labels), devices, sources
// and api-servers (whether pods have ended). Tables out: endpoints and collected-endpoints, as their only writer.
//
// Kernel state: none; it only looks whether links and namespaces still exist. On disk it owns <state-dir>/endpoints.
//
// After a restart the files are read in the start hook, before anything can allocate an address: ids and addresses are
// held first, rows follow, and a file that cannot be used becomes a quarantined row with whatever could be read of it.
//
// An endpoint whose pod has ended without a DEL is removed by proofs. There are three, each from another source: its link
// is gone (neither its index nor its name is on the node), its namespace is gone (the path of ADD has none or another one,
// in the directory in which the agent had seen it; or the kernel was started again), its pod is gone (the API server, which
// answers, knows no pod of that name and UID on this node, or a younger sandbox of it is attached). It takes two of them,
// the same two in each look of an interval, and no sign of life: a link or a namespace that is there outweighs everything.
// So the link must always be gone. What cannot be seen proves nothing, for or against.
package endpointmanager
