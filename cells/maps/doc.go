// Package maps opens the BPF maps that programs and agent share, and keeps them pinned so that they outlive the agent.
//
// What maps there are, and how they look, is read from the programs' objects; nothing is declared twice. Cells reach
// them through [github.com/waggle-net/waggle/pkg/bpfmaps.Maps] once this cell's start hook has run.
//
// Tables: reads attachments; writes bpf-maps. Kernel state: the mount of the BPF file system when there is none, the directory
// <bpf-root>/waggle/maps with the pins <name>_v<layout> and the marks filling_<name>_v<layout> in it, and the contents of the map resize_state. Other contents belong
// to the cells that fill the maps.
//
// After a restart a pin that fits is used as it is, contents and all. One of another layout or size is copied, and stays
// written while programs may read it (see [twin]); entries of flows are moved when all programs look into both maps (see [flowResize]); one that its owner had not filled is still to be filled; what is no such map is moved out of the way. Programs keep the maps that
// they were loaded with, so none of that touches them. A map that cannot be opened or made keeps nobody from starting: every
// user of it gets the error, no program is loaded, what is attached stays attached, and a job tries again.
package maps
