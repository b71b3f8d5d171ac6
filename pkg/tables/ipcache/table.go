package ipcache

import (
	"cmp"
	"net/netip"
	"strconv"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"github.com/waggle-net/waggle/pkg/printable"
)

// TableHeader implements statedb.TableWritable.
func (*Entry) TableHeader() []string {
	return []string{"Prefix", "Identity", "Node", "Source", "Owner", "Status"}
}

// TableRow implements statedb.TableWritable.
func (e *Entry) TableRow() []string {
	return []string{e.Prefix.String(), strconv.FormatUint(uint64(e.Identity), 10), printable.Text(cmp.Or(e.Node, "-")), e.Source.String(), e.Owner, e.Status.Kind.String()}
}

var prefixIndex = statedb.Index[*Entry, netip.Prefix]{
	Name:       "prefix",
	FromObject: func(e *Entry) index.KeySet { return index.NewKeySet(index.NetIPPrefix(e.Prefix)) },
	FromKey:    index.NetIPPrefix,
	FromString: index.NetIPPrefixString,
	Unique:     true,
}

// ByPrefix finds a prefix.
var ByPrefix = prefixIndex.Query

// NewTable makes the table "ipcache".
func NewTable(db *statedb.DB) (statedb.RWTable[*Entry], error) {
	return statedb.NewTable(db, "ipcache", prefixIndex)
}

// Claim is what one owner says of one prefix.
type Claim struct {
	Prefix   netip.Prefix
	Identity uint32
	Node     string // the other node that has the prefix; empty for none
	Source   Source
}

// Owners of claims. The maps are pruned once each of them has said that its set is complete.
const (
	OwnerEndpoints       = "endpoints"        // endpoints of this node
	OwnerCiliumEndpoints = "cilium-endpoints" // pods of other nodes
	OwnerHost            = "sync-host-ips"    // this node's addresses, and the world
	OwnerNodes           = "nodes"            // other nodes' addresses, and the API server's
	OwnerOverlay         = "overlay"          // pod ranges of other nodes, with a tunnel
)

// Writer lets features contribute prefixes. Where several owners claim a prefix, the highest source wins, then the
// owner whose name sorts first; the losing claims are remembered and come back when the winner goes. An owner calls one of both functions and never the other.
// Complete says that all inputs are known: what an earlier run left in the maps, and nobody claims, may go.
type Writer interface {
	// Replace makes claims the set of owner, in one commit.
	Replace(owner string, claims []Claim, complete bool)
	// Update changes some claims of owner, in one commit. What owner claims already, or does not claim, makes no change.
	Update(owner string, put []Claim, remove []netip.Prefix, complete bool)
}
