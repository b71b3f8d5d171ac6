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
	// IPv4 and IPv6 are how many flows the last pass over the maps left: as a client of services, as who leaves under the node's address,
	// and as who answers clients from outside.
	IPv4 int32 `json:"ipv4"`
	IPv6 int32 `json:"ipv6"`
	// Percent is how much of its share that is, in the family in which it is more.
	Percent int `json:"percent"`
	// Refused is how many signals of programs there were since the agent began that the share was used up, or no port or no room left;
	// there may be more refused flows than that.
	Refused uint64 `json:"refused"`
}

// TableHeader implements statedb.TableWritable.
func (Usage) TableHeader() []string {
	return []string{"Endpoint", "Pod", "IPv4", "IPv6", "Percent", "Refused"}
}

// TableRow implements statedb.TableWritable.
func (u Usage) TableRow() []string {
	return []string{strconv.Itoa(int(u.Endpoint)), printable.Text(cmp.Or(u.Pod, "-")), strconv.Itoa(int(u.IPv4)), strconv.Itoa(int(u.IPv6)),
		strconv.Itoa(u.Percent), strconv.FormatUint(u.Refused, 10)}
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
