package bpf

import (
	"strconv"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// LayoutVersion is the version of a map's layout, which stands in the name of its pin. It rises whenever the type, the
// flags, the key or the value of the map change, or what one of their bits means; a test holds it against a record of all
// layouts. How many entries a map has is no part of it.
func LayoutVersion(name string) uint32 {
	switch name {
	case MapEndpointFacts, MapIpcache, MapIpcachePrefixes, MapCIDRs:
		return 2
	}
	return 1
}

// Former is the layout that a map had in the release before. The agent fills a map of the present layout from it, and
// keeps it current for one release, so that programs of that release go on and can come back.
type Former struct {
	Version uint32
	Spec    *ebpf.MapSpec // the map as that release made it; the present one has no more entries
	// Forward makes an entry of the present layout from one of this, Back the reverse. Both get and return bytes as the
	// kernel has them, and say whether the other layout has such an entry at all.
	Forward, Back Convert
	// Partial says that Forward leaves out what only the owner of the map knows: programs may not read the present map before the owner has written it.
	Partial bool
}

// Convert turns an entry of one layout into one of another.
type Convert func(key, value []byte) (newKey, newValue []byte, exists bool)

// FormerLayout returns the layout that a map had in the release before; nil when it has not changed.
func FormerLayout(name string) *Former {
	switch name {
	case MapEndpointFacts:
		return &Former{Version: 1,
			Spec:    &ebpf.MapSpec{Name: name, Type: ebpf.Array, KeySize: 4, ValueSize: formerFactsSize, MaxEntries: 4096},
			Forward: factsForward, Back: factsBack,
		}
	case MapIpcache:
		return &Former{Version: 1, Forward: ipcacheIdentity, Back: ipcacheIdentity, Partial: true,
			Spec: &ebpf.MapSpec{Name: name, Type: ebpf.Hash, KeySize: 20, ValueSize: ipcacheSize, MaxEntries: 131072, Flags: unix.BPF_F_NO_PREALLOC}}
	case MapIpcachePrefixes:
		return &Former{Version: 1, Forward: ipcacheIdentity, Back: ipcacheIdentity, Partial: true,
			Spec: &ebpf.MapSpec{Name: name, Type: ebpf.LPMTrie, KeySize: 24, ValueSize: ipcacheSize, MaxEntries: 65536, Flags: unix.BPF_F_NO_PREALLOC}}
	case MapCIDRs:
		return &Former{Version: 1, Forward: cidrForward, Back: cidrBack,
			Spec: &ebpf.MapSpec{Name: name, Type: ebpf.LPMTrie, KeySize: 24, ValueSize: 4, MaxEntries: 65536, Flags: unix.BPF_F_NO_PREALLOC}}
	}
	return nil
}

// PinName is how a map is called in the BPF file system.
func PinName(name string, version uint32) string {
	return name + "_v" + strconv.FormatUint(uint64(version), 10)
}
