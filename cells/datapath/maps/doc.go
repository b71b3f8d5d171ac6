// Package maps opens the BPF maps that programs and agent share, and keeps them pinned so that they outlive the agent.
//
// The names and layouts of the maps are read from the programs' objects. Cells use the maps through [github.com/waggle-net/waggle/pkg/datapath/pinnedmaps.Maps] after the
// start hook of this cell has run.
//
// Table in: attachments. Table out: bpf-maps. Kernel state: the mount of the BPF file system if there is none, the directory <bpf-root>/waggle/maps with the
// pins <name>_v<layout> and the marks filling_<name>_v<layout> in it, and the contents of the map resize_state. Other contents belong to the cells that fill
// the maps.
//
// After a restart a pin that fits is used with its contents. A map of another layout or size is copied, and writes are repeated in the old map while programs
// may read it (see [shadow]). Entries of flows are moved when all programs use both maps (see [flowResize]). A map that its owner had not filled remains marked
// as unfilled. A pin that does not fit is moved to another name. Programs keep the maps that they were loaded with, so these steps do not affect attached
// programs. A map that cannot be opened or created does not prevent the start of the agent: every user of the map gets the error, no program is loaded,
// attached programs stay attached, and a job retries.
package maps
