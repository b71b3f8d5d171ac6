package bpf

import (
	"encoding/binary"
	"net/netip"
)

// The layout of ipcache and ipcache_prefixes that the release before has: bytes 0-3 identity, bytes 4-7 IPv4 address of the node that has the address, where
// the present one has the id of the node.
const ipcacheSize = 8

// ipcacheIdentity converts in both directions what both layouts have, the identity. The cell that writes the maps knows the nodes; see
// [FormerIpcacheEntry].
func ipcacheIdentity(key, value []byte) ([]byte, []byte, bool) {
	if len(value) != ipcacheSize {
		return nil, nil, false
	}
	return key, append(value[:4:4], 0, 0, 0, 0), true
}

// FormerIpcacheEntry returns a value of ipcache or ipcache_prefixes as programs of the release before read it; peer is the IPv4 address of the node.
func FormerIpcacheEntry(identity uint32, peer netip.Addr) []byte {
	value := binary.NativeEndian.AppendUint32(nil, identity)
	return binary.NativeEndian.AppendUint32(value, IPv4Word(peer))
}
