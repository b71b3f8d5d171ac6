package bpf

import (
	"encoding/binary"
	"net/netip"
)

// Slots of the map [MapEpochs]. A flow is evaluated again when the identity of its peer may have changed, or a CIDR that a policy names.
const (
	// EpochIPCache is incremented after each change of [MapIpcachePrefixes], and in place of many shards.
	EpochIPCache uint32 = 0
	// EpochCIDRs is incremented after each change of [MapCIDRs].
	EpochCIDRs uint32 = 1
)

// EpochShards is the number of slots of [MapEpochShards].
const EpochShards = 1 << epochShardsLog

const (
	epochShardsLog  = 12
	epochMultiplier = 0x9e3779b97f4a7c15
)

// EpochShard returns the slot of [MapEpochShards] that is incremented after each change of an address in [MapIpcache]; epoch_shard in ipcache.h computes the
// same.
func EpochShard(addr netip.Addr) uint32 {
	key := NewAddrKey(addr)
	word := func(at int) uint64 { return uint64(binary.NativeEndian.Uint32(key.Addr[at:])) }
	high, low := word(0)|word(4)<<32, word(8)|word(12)<<32
	return uint32(((high * epochMultiplier) ^ low) * epochMultiplier >> (64 - epochShardsLog))
}
