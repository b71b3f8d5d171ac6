// Package endpointmanager says which attachments of pods to the network are wanted: it takes requests of the API,
// checks them against what exists, and keeps each endpoint as a row and as a file.
//
// Tables in: endpoint-states (to wait until an endpoint is ready), k8s-pods and k8s-namespaces (labels).
// Tables out: endpoints, as its only writer.
//
// Kernel state: none; it only looks whether the links of restored endpoints still exist. On disk it owns
// <state-dir>/endpoints.
//
// After a restart the files are read in the start hook, before anything can allocate an address: ids and addresses are
// held first, rows follow, and a file that cannot be used becomes a quarantined row with whatever could be read of it.
package endpointmanager
