// Package natusage holds how many translated flows each endpoint of this node has, and how many found no room.
package natusage

import (
	"cmp"
	"strconv"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"github.com/waggle-net/waggle/pkg/printable"
)

// Usage is one endpoint.
type Usage struct {
	Endpoint uint16 `json:"endpoint"`      // local id
	Pod      string `json:"pod,omitempty"` // "namespace/name"
	// Translations is how many the last pass over the maps left: pods as clients of services, and pods masqueraded.
	Translations uint32 `json:"translations"`
	// Refused is how many signals of programs there were since the agent began that no port or no room was left; there may be more
	// refused flows than that.
	Refused uint64 `json:"refused"`
}

// TableHeader implements statedb.TableWritable.
func (Usage) TableHeader() []string { return []string{"Endpoint", "Pod", "Translations", "Refused"} }

// TableRow implements statedb.TableWritable.
func (u Usage) TableRow() []string {
	return []string{strconv.Itoa(int(u.Endpoint)), printable.Text(cmp.Or(u.Pod, "-")), strconv.FormatUint(uint64(u.Translations), 10),
		strconv.FormatUint(u.Refused, 10)}
}

var endpointIndex = statedb.Index[Usage, uint16]{
	Name:       "endpoint",
	FromObject: func(u Usage) index.KeySet { return index.NewKeySet(index.Uint16(u.Endpoint)) },
	FromKey:    index.Uint16,
	FromString: index.Uint16String,
	Unique:     true,
}

// ByEndpoint finds the row of an endpoint.
var ByEndpoint = endpointIndex.Query

// NewTable makes the table "nat-usage".
func NewTable(db *statedb.DB) (statedb.RWTable[Usage], error) {
	return statedb.NewTable(db, "nat-usage", endpointIndex)
}
