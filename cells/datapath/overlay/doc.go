// Package overlay maintains the tunnel through which pods reach pods of other nodes (--routing-mode=tunnel): VXLAN over IPv4 or IPv6.
//
// Tables in: nodes, local-node, mtus, devices, attachments, path-tests, node-slots, k8s-services. Table out: overlays. Tables contributed to: ipcache
// (owner "overlay": the pod ranges of other nodes, in every mode; with a tunnel each with its node; and the CIDRs of the cluster pool), sysctls (owner "overlay").
//
// It owns the device waggle_vxlan, identified by its name, kind and link group, and the map overlay, in which programs find the device. The device is set up
// when its program is attached. The cell never adopts a foreign device of that name. After a restart it reuses the device unchanged. With --routing-mode=native
// it deletes the device of a previous run.
//
// It also owns the veth pair waggle_csum and waggle_csum2, which completes the checksums of packets to nodes if devices of the underlay corrupt them. The pair
// exists only while there are such nodes.
package overlay
