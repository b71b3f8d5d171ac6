package bpfmaps

import (
	"fmt"

	"github.com/cilium/ebpf"
)

// AwaitPackets returns when every packet that is in a program now has left it, and the rules behind it: all of that is one
// section of RCU. The kernel waits so long whenever a map of maps is changed, so that who changed it can rely on it.
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
