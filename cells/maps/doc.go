// Package maps opens the BPF maps that programs and agent share, and keeps them pinned so that they outlive the agent.
//
// What maps there are, and how they look, is read from the programs' objects; nothing is declared twice. Cells reach
// them through [github.com/waggle-net/waggle/pkg/bpfmaps.Maps] once this cell's start hook has run.
//
// Tables: writes bpf-maps. Kernel state: the mount of the BPF file system when there is none, the directory
// <bpf-root>/waggle/maps and the pins <name>_v1 in it. The contents belong to the cells that fill them.
//
// After a restart a pin that fits is used as it is, contents and all. One that does not fit is never deleted or
// replaced: programs of the earlier run may still enforce policy with it. Then every user of that map gets an error that
// names the pin and the remedy, no program is loaded, what is attached stays attached, and the agent goes on serving.
package maps
