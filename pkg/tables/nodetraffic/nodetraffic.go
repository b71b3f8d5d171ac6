// Package nodetraffic defines the table of the nodes whose pods have flows with pods of this node, and the times of their replies.
package nodetraffic

import (
	"fmt"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/column"
	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/printable"
)

// Family is the evidence from flows of one address family about a node.
type Family struct {
	Flows int `json:"flows,omitempty"` // flows with pods of the node in the last pass of the collector
	// Unanswered counts the flows that pods of this node have opened since the previous pass and that had no reply.
	Unanswered int `json:"unanswered,omitempty"`
	// Answered is a time after which a packet from the node arrived: the start of the newest flow that its pods replied to, or that its pods opened and
	// continued after a reply. It is zero without such a flow. Later packets of a flow are not recorded, so this is the latest proven time, not the
	// time of the last packet.
	Answered time.Time `json:"answered,omitzero"`
}

// Traffic is one row. It is never changed in place.
type Traffic struct {
	Node string `json:"node"`
	UID  string `json:"uid,omitempty"` // UID of the object of the node; another UID means another node
	IPv4 Family `json:"ipv4,omitzero"`
	IPv6 Family `json:"ipv6,omitzero"`
}

// Family returns the evidence of one family.
func (t *Traffic) Family(ipv6 bool) Family {
	if ipv6 {
		return t.IPv6
	}
	return t.IPv4
}

// TableHeader implements statedb.TableWritable.
func (*Traffic) TableHeader() []string {
	return []string{"Node", "Flows", "Unanswered", "Answered4", "Answered6"}
}

// TableRow implements statedb.TableWritable.
func (t *Traffic) TableRow() []string {
	return []string{printable.Text(t.Node), fmt.Sprint(t.IPv4.Flows + t.IPv6.Flows), fmt.Sprint(t.IPv4.Unanswered + t.IPv6.Unanswered),
		column.Time(t.IPv4.Answered), column.Time(t.IPv6.Answered)}
}

var nodeIndex = indexes.Unique("node", indexes.String, func(t *Traffic) string { return t.Node })

// ByNode finds the row of a node.
var ByNode = nodeIndex.Query

// NewTable makes the table "node-traffic".
func NewTable(db *statedb.DB) (statedb.RWTable[*Traffic], error) {
	return statedb.NewTable(db, "node-traffic", nodeIndex)
}
