// Package basedevices makes the links on which the datapath of the node stands, with their addresses, the routes towards
// pods and the kernel settings that both need.
//
// Tables in: local-node, mtus, endpoints, devices, device-addresses. Table out: desired-devices. Through their writers it
// contributes to desired-routes (owners "local-node" and "endpoints-outside") and sysctls (owners "base-devices" and "pod-links").
//
// It owns two veth pairs, by name: waggle_host with waggle_net, which carries the router addresses of the pods, and
// waggle_hold with waggle_hold2, which stay down and keep the shared tc blocks alive. Every address of waggle_host that
// is wider than the link is ours. A link with one of the names that is not such a pair is never adopted.
//
// After a restart the pairs are taken over as they are. Router addresses of the earlier run stay until local-node is
// ready, and those that it no longer names are removed then. A pair that somebody deletes or changes is repaired as soon
// as that is observed.
package basedevices
