// Package backends holds the backends of services. The frontends that name a backend show whether the datapath has it.
package backends

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/printable"
	"github.com/waggle-net/waggle/pkg/rootwatch"
)

// State is the kind of connections that a backend accepts.
type State string

const (
	Active      State = "active"      // new connections
	Terminating State = "terminating" // established connections; new ones only if no backend is active
	NotReady    State = "not-ready"   // no connections, but the service still names it
)

// Backend is used by at least one service.
type Backend struct {
	loadbalancer.Address
	ID       uint32   `json:"id"`              // in the map, never 0; kept over restarts
	Local    bool     `json:"local,omitempty"` // a pod of this node, or the node itself
	State    State    `json:"state"`
	Node     string   `json:"node,omitempty"` // empty when not known
	Zone     string   `json:"zone,omitempty"`
	Pod      string   `json:"pod,omitempty"` // "namespace/name"; empty when it is no pod
	Services []string `json:"services"`      // names of rows of services, sorted
}

// Equal compares all.
func (b *Backend) Equal(o *Backend) bool {
	return b.Address == o.Address && b.ID == o.ID && b.State == o.State && b.Local == o.Local && b.Node == o.Node && b.Zone == o.Zone &&
		b.Pod == o.Pod && slices.Equal(b.Services, o.Services)
}

// TableHeader implements statedb.TableWritable.
func (*Backend) TableHeader() []string {
	return []string{"Address", "ID", "State", "Local", "Node", "Zone", "Pod", "Services"}
}

// TableRow implements statedb.TableWritable.
func (b *Backend) TableRow() []string {
	return []string{b.Address.String(), strconv.FormatUint(uint64(b.ID), 10), string(b.State), strconv.FormatBool(b.Local),
		printable.Text(cmp.Or(b.Node, "-")), printable.Text(cmp.Or(b.Zone, "-")), printable.Text(cmp.Or(b.Pod, "-")),
		printable.Text(strings.Join(b.Services, ","))}
}

var addressIndex = statedb.Index[*Backend, loadbalancer.Address]{
	Name:       "address",
	FromObject: func(b *Backend) index.KeySet { return index.NewKeySet(b.Address.Key()) },
	FromKey:    loadbalancer.Address.Key,
	FromString: func(text string) (index.Key, error) {
		a, err := loadbalancer.ParseAddress(text)
		return a.Key(), err
	},
	Unique: true,
}

var idIndex = indexes.Unique("id", indexes.Uint32, func(b *Backend) uint32 { return b.ID })

// Queries.
var (
	ByAddress = addressIndex.Query
	ByID      = idIndex.Query
)

// NewTable makes the table "backends". A watch channel of a query closes after any change of the table, because channels of single rows would take more than 0.2 kB
// for each row.
func NewTable(db *statedb.DB) (statedb.RWTable[*Backend], error) {
	table, err := statedb.NewTable(db, "backends", addressIndex, idIndex)
	if err != nil {
		return nil, err
	}
	return table, rootwatch.Only(db, table)
}
