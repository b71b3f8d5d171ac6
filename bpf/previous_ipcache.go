package bpf

import (
	"encoding/binary"
	"net/netip"
)

// The layout of ipcache and ipcache_prefixes in the previous release: bytes 0-3 identity, bytes 4-7 IPv4 address of the node of the address, where the
// current layout has the id of the node.
const ipcacheSize = 8

// ipcacheIdentity converts the common field of both layouts, the identity, in both directions. The cell that writes the maps knows the nodes; see
// [PreviousIpcacheEntry].
func ipcacheIdentity(key, value []byte) ([]byte, []byte, bool) {
	if len(value) != ipcacheSize {
		return nil, nil, false
	}
	return key, append(value[:4:4], 0, 0, 0, 0), true
}

// PreviousIpcacheEntry returns a value of ipcache or ipcache_prefixes in the layout of the previous release; peer is the IPv4 address of the node.
func PreviousIpcacheEntry(identity uint32, peer netip.Addr) []byte {
	value := binary.NativeEndian.AppendUint32(nil, identity)
	return binary.NativeEndian.AppendUint32(value, IPv4Word(peer))
}
