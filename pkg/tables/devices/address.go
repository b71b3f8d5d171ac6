package devices

import (
	"net/netip"
	"strconv"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
)

// Address is one address of one link, as last reported by the kernel. Its row may briefly precede or outlive the link's row, because the kernel reports
// them separately.
type Address struct {
	LinkIndex int          `json:"linkIndex"`
	Prefix    netip.Prefix `json:"prefix"` // the address itself and the length of its network; not masked
	Scope     uint8        `json:"scope"`  // RT_SCOPE_*: 0 global, 253 link, 254 host
	Secondary bool         `json:"secondary"`
	// Tentative means that the kernel does not use this IPv6 address: duplicate address detection is running or, if Duplicate is set, has failed.
	Tentative bool `json:"tentative"`
	Duplicate bool `json:"duplicate"`
	// Fleeting means that the IPv6 address is temporary (RFC 8981) or deprecated: new connections must not use it.
	Fleeting bool `json:"fleeting"`
}

// Addr is the address without its network.
func (a Address) Addr() netip.Addr { return a.Prefix.Addr() }

// TableHeader implements statedb.TableWritable.
func (Address) TableHeader() []string {
	return []string{"LinkIndex", "Address", "Scope", "Secondary", "Fleeting"}
}

// TableRow implements statedb.TableWritable.
func (a Address) TableRow() []string {
	return []string{strconv.Itoa(a.LinkIndex), a.Prefix.String(), strconv.Itoa(int(a.Scope)), strconv.FormatBool(a.Secondary),
		strconv.FormatBool(a.Fleeting)}
}

var addressIndex = indexes.Unique("id", indexes.String, func(a Address) string { return a.Prefix.String() + "@" + strconv.Itoa(a.LinkIndex) })
var addressLinkIndex = indexes.Shared("link", indexes.Int, func(a Address) int { return a.LinkIndex })

// Queries of addresses. AddressByID takes "<address>/<length>@<ifindex>".
var (
	AddressByID   = addressIndex.Query
	AddressByLink = addressLinkIndex.Query
)

// NewAddressTable makes the table "device-addresses".
func NewAddressTable(db *statedb.DB) (statedb.RWTable[Address], error) {
	return statedb.NewTable(db, "device-addresses", addressIndex, addressLinkIndex)
}
