package ipcache

import (
	"cmp"
	"net/netip"
	"strconv"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"github.com/waggle-net/waggle/pkg/printable"
	"github.com/waggle-net/waggle/pkg/rootwatch"
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
	FromObject: func(e *Entry) index.KeySet { return index.NewKeySet(index.String(string(e.key))) },
	FromKey:    func(p netip.Prefix) index.Key { return index.String(string(KeyOf(p))) },
	FromString: func(text string) (index.Key, error) {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, err
		}
		return index.String(string(KeyOf(p))), nil
	},
	Unique: true,
}

// ByPrefix finds a prefix.
var ByPrefix = prefixIndex.Query

// Key is the key of a row in the prefix index: the position of the family, the address and the length of the prefix. The order of keys is the order of the
// addresses, with IPv4 at ::ffff:0:0. Most rows are of pods with IPv4, so their keys are short: 6 bytes, of which the allocator stores two in 16 bytes.
type Key string

// The first byte of a key.
const (
	lowIPv6  = iota // less than ::ffff:0:0
	onlyIPv4        // IPv4
	highIPv6
)

const (
	ipv4Size, ipv6Size = 1 + 4 + 1, 1 + 16 + 1                              // of keys
	ipv4Mapped         = "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff" // ::ffff:0:0/96
)

// KeyOf returns the key of a prefix.
func KeyOf(p netip.Prefix) Key {
	p = p.Masked()
	if p.Addr().Is4() {
		a := p.Addr().As4()
		return Key([]byte{onlyIPv4, a[0], a[1], a[2], a[3], uint8(p.Bits())})
	}
	var k [ipv6Size]byte
	a := p.Addr().As16()
	copy(k[1:], a[:])
	k[ipv6Size-1] = uint8(p.Bits())
	if k[0] = lowIPv6; string(a[:len(ipv4Mapped)]) >= ipv4Mapped {
		k[0] = highIPv6
	}
	return Key(k[:])
}

// prefix returns the masked prefix of a key.
func (k Key) prefix() netip.Prefix {
	switch len(k) {
	case ipv4Size:
		return netip.PrefixFrom(netip.AddrFrom4([4]byte([]byte(k[1:5]))), int(k[5]))
	case ipv6Size:
		return netip.PrefixFrom(netip.AddrFrom16([16]byte([]byte(k[1:17]))), int(k[17]))
	}
	return netip.Prefix{}
}

// ByKey finds a row by its [Key].
func ByKey(k Key) statedb.Query[*Entry] { return prefixIndex.QueryFromKey(index.String(string(k))) }

// NewTable makes the table "ipcache". A watch channel of a query closes after any change of the table, because channels of single rows would take 0.1 kB for each
// pod of the cluster.
func NewTable(db *statedb.DB) (statedb.RWTable[*Entry], error) {
	table, err := statedb.NewTable(db, "ipcache", prefixIndex)
	if err != nil {
		return nil, err
	}
	return table, rootwatch.Only(db, table)
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
