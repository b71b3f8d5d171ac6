// Package bpfmaps holds one row for each BPF map of the agent.
package bpfmaps

import (
	"cmp"
	"strconv"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
)

// Map is one pinned map.
type Map struct {
	Name       string `json:"name"`       // name in the programs
	Type       string `json:"type"`       // "Hash", "LPMTrie", ...
	KeySize    uint32 `json:"keySize"`    // bytes
	ValueSize  uint32 `json:"valueSize"`  // bytes; of one CPU in per-CPU maps
	MaxEntries uint32 `json:"maxEntries"` // bytes for a ring buffer
	Memory     uint64 `json:"memory"`     // bytes that the kernel charges; 0 if the kernel does not report it
	Pin        string `json:"pin"`        // path in the BPF file system
	Owner      string `json:"owner"`      // cell that fills it; "datapath" if the programs do
	// Reused reports whether the map existed when the agent started.
	Reused bool `json:"reused"`
	// Filled reports whether the map is as complete as for the previous programs. While it is false, the owner must write all entries, also after a
	// crash and a restart.
	Filled bool `json:"filled"`
	// Opened is the time at which this run opened or created the map; zero while that fails.
	Opened time.Time `json:"opened"`
	// Shadow is the pin of the shadow map: the same map with another layout or size, which is also written while programs of another generation may read
	// it. For a flow map it is the pin of the map with the configured size that will replace it. Empty without one.
	Shadow string `json:"shadow,omitempty"`
	// Note describes an unusual event while the map was opened; empty without one.
	Note string `json:"note,omitempty"`
	// Error says why the map cannot be used, with the remedy; empty without an error.
	Error string `json:"error,omitempty"`
}

// Owners of maps that have to be filled before programs may read them.
const (
	OwnerEndpointMaps = "endpoint-maps"
	OwnerIpcache      = "ipcache"
	OwnerServiceMaps  = "service-maps"
	OwnerNodeMaps     = "node-maps"
)

// OwnerDatapath is the owner of maps whose entries the programs create. Cells delete some of these entries, and write single slots of arrays.
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

var nameIndex = indexes.Unique("name", indexes.String, func(m *Map) string { return m.Name })

// ByName finds one map.
var ByName = nameIndex.Query

// NewTable makes the table "bpf-maps".
func NewTable(db *statedb.DB) (statedb.RWTable[*Map], error) {
	return statedb.NewTable(db, "bpf-maps", nameIndex)
}
