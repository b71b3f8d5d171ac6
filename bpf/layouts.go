package bpf

import (
	"strconv"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// LayoutVersion is the version of a map's layout, which is part of the name of its pin. It is incremented whenever the type, the flags, the key or the value
// of the map change, or the meaning of one of their bits; a test compares it with a record of all layouts. The number of entries is not part of the layout.
func LayoutVersion(name string) uint32 {
	switch name {
	case MapEndpointFacts, MapIpcache, MapIpcachePrefixes, MapCIDRs, MapAffinity:
		return 2
	}
	return 1
}

// PreviousLayout is the layout of a map in the previous release. The agent fills a map of the current layout from it, and keeps it current for one release, so that
// programs of that release continue to work and can be restored.
type PreviousLayout struct {
	Version uint32
	Spec    *ebpf.MapSpec // the map as created by that release; the current one has no more entries
	// Forward converts an entry of this layout to the current one, Back the reverse. Both take and return bytes as in the kernel, and report whether the
	// other layout has such an entry at all.
	Forward, Back Convert
	// Partial means that Forward omits data that only the owner of the map knows: programs must not read the current map before the owner has written it.
	Partial bool
}

// Convert converts an entry of one layout to another one.
type Convert func(key, value []byte) (newKey, newValue []byte, exists bool)

// PreviousLayoutOf returns the layout of a map in the previous release; nil when it has not changed.
func PreviousLayoutOf(name string) *PreviousLayout {
	switch name {
	case MapEndpointFacts:
		return &PreviousLayout{Version: 1,
			Spec:    &ebpf.MapSpec{Name: name, Type: ebpf.Array, KeySize: 4, ValueSize: previousFactsSize, MaxEntries: 4096},
			Forward: factsForward, Back: factsBack,
		}
	case MapIpcache:
		return &PreviousLayout{Version: 1, Forward: ipcacheIdentity, Back: ipcacheIdentity, Partial: true,
			Spec: &ebpf.MapSpec{Name: name, Type: ebpf.Hash, KeySize: 20, ValueSize: ipcacheSize, MaxEntries: 131072, Flags: unix.BPF_F_NO_PREALLOC}}
	case MapIpcachePrefixes:
		return &PreviousLayout{Version: 1, Forward: ipcacheIdentity, Back: ipcacheIdentity, Partial: true,
			Spec: &ebpf.MapSpec{Name: name, Type: ebpf.LPMTrie, KeySize: 24, ValueSize: ipcacheSize, MaxEntries: 65536, Flags: unix.BPF_F_NO_PREALLOC}}
	case MapCIDRs:
		return &PreviousLayout{Version: 1, Forward: cidrForward, Back: cidrBack,
			Spec: &ebpf.MapSpec{Name: name, Type: ebpf.LPMTrie, KeySize: 24, ValueSize: 4, MaxEntries: 65536, Flags: unix.BPF_F_NO_PREALLOC}}
	case MapAffinity: // the same entries in a map of another type
		return &PreviousLayout{Version: 1, Forward: unchanged, Back: unchanged,
			Spec: &ebpf.MapSpec{Name: name, Type: ebpf.Hash, KeySize: 24, ValueSize: 8, MaxEntries: AffinityMax, Flags: unix.BPF_F_NO_PREALLOC}}
	}
	return nil
}

// unchanged converts an entry between layouts of which only the map type differs.
func unchanged(key, value []byte) ([]byte, []byte, bool) { return key, value, true }

// PinName returns the name of a map in the BPF file system.
func PinName(name string, version uint32) string {
	return name + "_v" + strconv.FormatUint(uint64(version), 10)
}
