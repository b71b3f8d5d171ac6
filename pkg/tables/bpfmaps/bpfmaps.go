// Package bpfmaps holds one row for each BPF map of the agent.
package bpfmaps

import (
	"cmp"
	"strconv"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
)

// Map is one pinned map.
type Map struct {
	Name       string `json:"name"`       // as the programs call it
	Type       string `json:"type"`       // "Hash", "LPMTrie", ...
	KeySize    uint32 `json:"keySize"`    // bytes
	ValueSize  uint32 `json:"valueSize"`  // bytes; of one CPU in per-CPU maps
	MaxEntries uint32 `json:"maxEntries"` // bytes for a ring buffer
	Memory     uint64 `json:"memory"`     // bytes that the kernel charges; 0 when it does not say
	Pin        string `json:"pin"`        // path in the BPF file system
	Owner      string `json:"owner"`      // cell that fills it; "datapath" when the programs do
	// Reused is true when the map was there when the agent started.
	Reused bool `json:"reused"`
	// Filled is true when a program that reads the map now finds what the programs before found. Until then the owner has to
	// write all of it, also after a crash and a restart.
	Filled bool `json:"filled"`
	// Opened is when this run opened or made the map; zero while it could not.
	Opened time.Time `json:"opened"`
	// Twin is the pin of the same map in another layout or size, which is written as well while programs of another
	// generation may read it. For a map of flows it is the pin of the one of the configured size that is to take its place. Empty when there is none.
	Twin string `json:"twin,omitempty"`
	// Note is what was unusual about opening the map; empty for nothing.
	Note string `json:"note,omitempty"`
	// Error is why the map cannot be used, with the remedy; empty when all is well.
	Error string `json:"error,omitempty"`
}

// Owners of maps that have to be filled before programs may read them.
const (
	OwnerEndpointMaps = "endpoint-maps"
	OwnerIpcache      = "ipcache"
	OwnerServiceMaps  = "service-maps"
	OwnerNodeMaps     = "node-maps"
)

// OwnerDatapath stands for the programs, which make the entries. Cells delete some of them, and write single slots of arrays.
const OwnerDatapath = "datapath"

// TableHeader implements statedb.TableWritable.
func (*Map) TableHeader() []string {
	return []string{"Name", "Type", "KeySize", "ValueSize", "MaxEntries", "Memory", "Owner", "Pin", "Note", "Error"}
}

// TableRow implements statedb.TableWritable.
func (m *Map) TableRow() []string {
	return []string{m.Name, m.Type, u32(m.KeySize), u32(m.ValueSize), u32(m.MaxEntries),
		strconv.FormatUint(m.Memory, 10), m.Owner, m.Pin, cmp.Or(m.Note, "-"), cmp.Or(m.Error, "-")}
}

func u32(v uint32) string { return strconv.FormatUint(uint64(v), 10) }

var nameIndex = statedb.Index[*Map, string]{
	Name:       "name",
	FromObject: func(m *Map) index.KeySet { return index.NewKeySet(index.String(m.Name)) },
	FromKey:    index.String,
	FromString: index.FromString,
	Unique:     true,
}

// ByName finds one map.
var ByName = nameIndex.Query

// NewTable makes the table "bpf-maps".
func NewTable(db *statedb.DB) (statedb.RWTable[*Map], error) {
	return statedb.NewTable(db, "bpf-maps", nameIndex)
}
