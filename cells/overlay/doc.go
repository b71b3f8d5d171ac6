// Package overlay maintains the tunnel through which pods reach pods of other nodes (--routing-mode=tunnel): VXLAN over IPv4 or IPv6.
//
// Tables in: nodes, local-node, mtus, devices, attachments, path-tests, node-slots. Table out: overlays. Through their writers it contributes to ipcache
// (owner "overlay": the pod ranges of other nodes, in every mode; with a tunnel each with its node) and sysctls (owner "overlay").
//
// It owns the device waggle_vxlan, known by its name, its kind and its link group, and the map overlay, in which programs find the device. The device
// is set up when its program is attached. A device of that name that is not ours is never adopted. After a restart the device is taken over as it is. With
// --routing-mode=native the device of a previous run is deleted.
//
// It also owns the veth pair waggle_csum and waggle_csum2, which completes the checksums of packets to nodes to which devices of the underlay spoil them, and exists only while
// there are such nodes.
package overlay
