// Package natusage holds the translated flows of each endpoint of this node, and the failures for lack of capacity.
package natusage

import (
	"cmp"
	"strconv"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"github.com/waggle-net/waggle/pkg/printable"
)

// Usage is the usage of one endpoint.
type Usage struct {
	Endpoint uint16 `json:"endpoint"`      // local id
	Pod      string `json:"pod,omitempty"` // "namespace/name"
	// IPv4 and IPv6 count the flows left by the last pass over the maps: as client of services, as masqueraded client, and as backend of clients from
	// outside.
	IPv4 int32 `json:"ipv4"`
	IPv6 int32 `json:"ipv6"`
	// Percent is the used part of the endpoint's quota, in the family with the higher usage.
	Percent int `json:"percent"`
	// Refused counts the signals of programs since the agent started that the quota was used up, or that no port or map capacity was left. More flows
	// may have been dropped than that.
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

// NewTable makes the table "nat-usage".
func NewTable(db *statedb.DB) (statedb.RWTable[Usage], error) {
	return statedb.NewTable(db, "nat-usage", endpointIndex)
}
