package pinnedmaps

import (
	"fmt"

	"github.com/cilium/ebpf"
)

// AwaitPackets returns when every packet that is now in a program has left the program and the netfilter rules after it: both are one RCU section. The kernel
// waits for the same period after a change of a map of maps, so the writer of the change can rely on it.
func AwaitPackets() error {
	inner := &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}
	outer, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: 1, InnerMap: inner})
	if err != nil {
		return fmt.Errorf("wait for packets: %w", err)
	}
	defer outer.Close()
	m, err := ebpf.NewMap(inner)
	if err != nil {
		return fmt.Errorf("wait for packets: %w", err)
	}
	defer m.Close()
	return outer.Put(uint32(0), m)
}
