// Package loader loads the programs of the datapath and attaches them to their hooks.
//
// All programs of a generation are loaded before the first is attached. Pod links share two blocks of traffic control, which the device waggle_hold holds. A
// link joins both blocks with one message, and a new generation replaces one filter in each block. waggle_host and the devices that lead out of the node have
// pinned tcx links (cls_bpf filters before Linux 6.6). The hooks of sockets have pinned links on a control group. A pod's link joins when the rows of its
// endpoint are in the maps, and is set up after that.
//
// Tables in: endpoints, endpoint-facts, bpf-links, bpf-endpoints, devices, pod-mtus, bpf-maps, ipcache, frontends, node-slots, sources. Tables out:
// attachments, bpf-programs. Kernel state: the clsact of waggle_hold and of pod links, the filters of the blocks, the pins in <bpf-root>/waggle/links and the
// attached links, the pins of steps in <bpf-root>/waggle/steps, the nftables table "inet waggle". The CNI plugin creates a pod's link; this cell sets its link
// group, disables ARP on it and sets it up.
//
// If another program removes or changes any of these objects, the cell restores them, in most cases when the kernel announces the change. The program of this
// cell is kept first on waggle_host. Foreign programs ahead of Waggle's on pod links are reported. On devices that lead out of the node, foreign programs may
// be first.
//
// After a restart all of these objects are in place and working. Filters and tcx links get the new generation in one step each, without a detach. If the new
// generation does not load, the old one stays attached, pods are attached to it, and a job retries. No hook is changed before maps that had to be created again
// are filled.
package loader
