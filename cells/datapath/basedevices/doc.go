// Package basedevices creates the links of the node that the datapath uses, with their addresses, the routes to pods and the kernel settings that both need.
//
// Tables in: local-node, mtus, endpoints, devices, device-addresses, desired-routes. Table out: desired-devices. Tables contributed to: desired-routes (owners
// "local-node" and "endpoints-outside"), sysctls (owners "base-devices" and "pod-links").
//
// It owns two veth pairs, by name: waggle_host with waggle_net, which has the router addresses of the pods, and waggle_hold with waggle_hold2, which stay down
// and keep the shared tc blocks alive. It owns every address of waggle_host with a scope wider than link. It never takes over a link with one of the names that
// is not such a pair.
//
// After a restart the existing pairs are reused. Router addresses of the previous run stay until local-node is ready; then addresses that are not in local-node
// are removed. A deleted or changed pair is repaired as soon as the change is observed.
package basedevices
