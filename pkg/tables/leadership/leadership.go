// Package leadership holds the leader of the cluster-wide work: this replica or another one.
package leadership

import (
	"strconv"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
)

// Leadership is a Lease as this replica knows it.
type Leadership struct {
	Lease    string `json:"lease"`    // "namespace/name"
	Identity string `json:"identity"` // of this replica
	Leader   string `json:"leader"`   // identity of the owner of the Lease; empty if it has none or the owner is unknown
	// Until is the time at which this replica must stop leading unless it renews before; zero if it does not lead. It is well before the time from
	// which another replica may take over.
	Until time.Time `json:"until,omitzero"`
	Since time.Time `json:"since,omitzero"` // time at which this replica first saw Leader
	Error string    `json:"error,omitempty"`
}

// Leads reports whether this replica leads at a time. Both clocks of the machine must confirm it: one of them stops while the machine is suspended, the
// other one may be set.
func (l Leadership) Leads(now time.Time) bool {
	return now.Before(l.Until) && now.Round(0).Before(l.Until.Round(0))
}

// TableHeader implements statedb.TableWritable.
func (Leadership) TableHeader() []string {
	return []string{"Lease", "Identity", "Leader", "Leading", "Since", "Error"}
}

// TableRow implements statedb.TableWritable.
func (l Leadership) TableRow() []string {
	since, leader := "-", "-"
	if !l.Since.IsZero() {
		since = l.Since.UTC().Format(time.RFC3339)
	}
	if l.Leader != "" {
		leader = l.Leader
	}
	return []string{l.Lease, l.Identity, leader, strconv.FormatBool(!l.Until.IsZero()), since, l.Error}
}

var leaseIndex = indexes.Unique("lease", indexes.String, func(l Leadership) string { return l.Lease })

// NewTable makes the table "leadership". It has one row.
func NewTable(db *statedb.DB) (statedb.RWTable[Leadership], error) {
	return statedb.NewTable(db, "leadership", leaseIndex)
}
