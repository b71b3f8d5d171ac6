// Package unmanagedpodfinder finds pods of this node that run without an endpoint, usually because they were started before the agent.
//
// Tables in: k8s-pods, endpoints. Table out: unmanaged-pods. The cell owns nothing in the kernel and changes no pod: an unmanaged pod gets an endpoint only
// when it is restarted.
package unmanagedpodfinder
