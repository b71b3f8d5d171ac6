// Package policyevents reports policies that exceed limits of this node on the objects, as Events: their authors may have no access to a node.
//
// One loop follows the table policies. It creates an Event for each object of the API server whose row has a problem with the reason Overflow. The name of the
// Event is derived from the UID of the object, so of all nodes that have the problem the first one creates it. While the problem lasts, the Event is created
// again each hour, because the API server deletes old Events.
//
// An author may change policies in a loop, so each agent creates a few Events at once and then one a minute, and waits for a random time that grows with the
// number of nodes.
//
// Tables in: policies, k8s-nodes. Tables out: none. It owns, in Kubernetes, Events with the reason [Reason]; nothing in the kernel.
package policyevents
