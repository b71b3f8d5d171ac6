// Package loader loads the programs of the datapath and hangs them on their hooks.
//
// All programs of a generation are loaded before the first is attached. Pod links share two blocks of traffic control,
// held by the device waggle_hold; joining them is one message, and a new generation is one replacement for each block.
// waggle_host and the devices that lead out of the node carry tcx links that are pinned (cls_bpf filters before Linux 6.6). A pod's link joins when the rows
// of its endpoint are in the maps, and is set up only then.
//
// Tables: reads endpoints, endpoint-facts, bpf-links, bpf-endpoints, devices, bpf-maps and ipcache; writes attachments and
// bpf-programs.
// Kernel state: the clsact of waggle_hold and of pod links, the filters of the blocks, the pins in
// <bpf-root>/waggle/links and what they attach, the pins of steps in <bpf-root>/waggle/steps, the nftables table "inet waggle". A pod's link itself belongs to the
// plugin; this cell gives it its group, takes ARP off it and sets it up.
//
// Whatever of it somebody else removes or changes is put right, most of it when the kernel announces it; ours is kept first
// on waggle_host, and programs of others ahead of ours on pod links are named. On devices that lead out others have the
// same right to be first.
//
// After a restart all of this is still there and working. Filters and tcx links get the new generation in one step each;
// nothing is detached in between. If the new generation does not load, the old one stays, pods are attached to it, and a job
// tries again. No hook is touched while maps that had to be made anew are not filled.
package loader
