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
	return []string{e.Prefix().String(), strconv.FormatUint(uint64(e.Identity), 10), printable.Text(cmp.Or(e.Node(), "-")), e.Source.String(), e.Owner(), e.kind.String()}
}

var prefixIndex = statedb.Index[*Entry, netip.Prefix]{
	Name:       "prefix",
	FromObject: func(e *Entry) index.KeySet { k := e.key; return index.NewKeySet(k[:]) }, // a copy, because the tree keeps the key of the first row
	FromKey:    index.NetIPPrefix,
	FromString: index.NetIPPrefixString,
	Unique:     true,
}

// ByPrefix finds a prefix.
var ByPrefix = prefixIndex.Query

// Key is the key of a row in the prefix index, as created by index.NetIPPrefix. It takes half the memory of a prefix and has no pointer.
type Key [17]byte

// KeyOf returns the key of a prefix.
func KeyOf(p netip.Prefix) (k Key) {
	addr := p.Masked().Addr().As16()
	copy(k[:], addr[:])
	k[len(addr)] = uint8(p.Bits())
	return k
}

// ByKey finds a row by its [Key].
func ByKey(k Key) statedb.Query[*Entry] { return prefixIndex.QueryFromKey(k[:]) }

// NewTable makes the table "ipcache".
func NewTable(db *statedb.DB) (statedb.RWTable[*Entry], error) {
	return statedb.NewTable(db, "ipcache", prefixIndex)
}

// Claim is the claim of one owner to one prefix.
type Claim struct {
	Prefix   netip.Prefix
	Identity uint32
	Node     string // the other node that has the prefix; empty for none
	Source   Source
}

// Owners of claims. The maps are pruned after each owner has declared its set complete.
const (
	OwnerEndpoints       = "endpoints"        // endpoints of this node
	OwnerCiliumEndpoints = "cilium-endpoints" // pods of other nodes
	OwnerHost            = "sync-host-ips"    // addresses of this node, and the world
	OwnerNodes           = "nodes"            // addresses of other nodes, and of the API server
	OwnerOverlay         = "overlay"          // pod ranges of other nodes, with a tunnel
)

// Writer adds prefixes. If several owners claim a prefix, the highest source wins, then the owner whose name sorts first. The losing claims are kept
// and apply when the winner is removed. An owner must always call the same one of both methods. With complete set, all inputs are known, and map
// entries of a previous run without a claim may be deleted.
type Writer interface {
	// Replace makes claims the set of owner, in one commit.
	Replace(owner string, claims []Claim, complete bool)
	// Update adds and removes claims of owner, in one commit. It ignores added claims that exist and removed claims that do not.
	Update(owner string, put []Claim, remove []netip.Prefix, complete bool)
}
