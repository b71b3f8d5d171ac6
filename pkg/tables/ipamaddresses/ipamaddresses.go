// Package ipamaddresses holds one row for each pod address that is not free.
package ipamaddresses

import (
	"net/netip"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/printable"
)

// State of an address that is not free.
type State string

const (
	Allocated   State = "allocated"   // handed out, not claimed by an endpoint yet; expires when Expiry is set
	Claimed     State = "claimed"     // an endpoint uses it
	Reserved    State = "reserved"    // the node itself uses it (router)
	Excluded    State = "excluded"    // never handed out; Owner says why
	Quarantined State = "quarantined" // released; free again at Expiry
)

// Address is one allocated, reserved, excluded or quarantined address.
type Address struct {
	Addr       netip.Addr `json:"addr"`
	Pool       string     `json:"pool"`                 // never empty; "default" unless another pool was requested
	State      State      `json:"state"`                // see the constants
	Owner      string     `json:"owner"`                // "namespace/pod", "router", "network", ...
	Attachment string     `json:"attachment,omitempty"` // "<container id>:<interface>" while an endpoint has it
	UUID       string     `json:"uuid,omitempty"`       // must be presented at the claim; only with an expiry
	Since      time.Time  `json:"since"`                // when State was entered
	Expiry     time.Time  `json:"expiry,omitzero"`      // end of Allocated or Quarantined; zero means none
}

// TableHeader implements statedb.TableWritable.
func (Address) TableHeader() []string {
	return []string{"Address", "Pool", "Owner", "Attachment", "State"}
}

// TableRow implements statedb.TableWritable.
func (a Address) TableRow() []string {
	return []string{a.Addr.String(), a.Pool, printable.Text(a.Owner), printable.Text(a.Attachment), string(a.State)}
}

var addrIndex = indexes.Unique("addr", indexes.Addr, func(a Address) netip.Addr { return a.Addr })
var ownerIndex = indexes.Shared("owner", indexes.String, func(a Address) string { return a.Owner })

// ByAddr finds the row of one address; ByOwner all rows of an owner.
var (
	ByAddr  = addrIndex.Query
	ByOwner = ownerIndex.Query
)

// NewTable makes the table "ipam-addresses".
func NewTable(db *statedb.DB) (statedb.RWTable[Address], error) {
	return statedb.NewTable(db, "ipam-addresses", addrIndex, ownerIndex)
}
