// Package identities holds the security identities that this node knows, and the identity of each endpoint.
package identities

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/labels"
	"github.com/waggle-net/waggle/pkg/printable"
)

// Source is the allocator of the number of a set of labels.
type Source string

const (
	Reserved    Source = "reserved"    // a fixed number
	CRD         Source = "crd"         // a CiliumIdentity: the same on all nodes
	Memory      Source = "memory"      // this agent, without Kubernetes
	Provisional Source = "provisional" // this agent, until there is a CiliumIdentity
)

// Identity is a number for a set of labels. Labels may have two rows while one number replaces another.
type Identity struct {
	ID     uint32            `json:"id"`
	Labels map[string]string `json:"labels,omitempty"` // "source:key" -> value; never changed in place
	Source Source            `json:"source"`
	Since  time.Time         `json:"since"` // when this agent first saw the identity
}

// Equal compares everything but Since.
func (i *Identity) Equal(o *Identity) bool {
	return i.ID == o.ID && i.Source == o.Source && maps.Equal(i.Labels, o.Labels)
}

// TableHeader implements statedb.TableWritable.
func (*Identity) TableHeader() []string { return []string{"Identity", "Source", "Labels"} }

// TableRow implements statedb.TableWritable.
func (i *Identity) TableRow() []string {
	return []string{strconv.FormatUint(uint64(i.ID), 10), string(i.Source), text(i.Labels)}
}

func text(labels map[string]string) string {
	return printable.Text(strings.Join(List(labels), ","))
}

var idIndex = indexes.Unique("id", indexes.Uint32, func(i *Identity) uint32 { return i.ID })

// ByID finds an identity.
var ByID = idIndex.Query

// NewTable makes the table "identities".
func NewTable(db *statedb.DB) (statedb.RWTable[*Identity], error) {
	return statedb.NewTable(db, "identities", idIndex)
}

// EndpointIdentity is the identity of one endpoint.
type EndpointIdentity struct {
	EndpointID uint16            `json:"endpointID"`
	Attachment string            `json:"attachment"` // distinguishes an endpoint from a later one with the same id
	Identity   uint32            `json:"identity"`
	Source     Source            `json:"source"`
	Labels     map[string]string `json:"labels,omitempty"` // the labels that make up the identity; never changed in place
	Why        string            `json:"why,omitempty"`    // why the endpoint has had no cluster-wide number for long; empty otherwise
}

// Equal compares everything.
func (e *EndpointIdentity) Equal(o *EndpointIdentity) bool {
	return e.EndpointID == o.EndpointID && e.Attachment == o.Attachment && e.Identity == o.Identity && e.Source == o.Source &&
		e.Why == o.Why && maps.Equal(e.Labels, o.Labels)
}

// List returns the labels as "source:key=value", sorted. Reserved labels with an empty value have no "=", the usual notation.
func List(set map[string]string) []string {
	list := make([]string, 0, len(set))
	for _, key := range slices.Sorted(maps.Keys(set)) {
		if value := set[key]; value != "" || labels.SourceOf(key) != labels.SourceReserved {
			key += "=" + value
		}
		list = append(list, key)
	}
	return list
}

// TableHeader implements statedb.TableWritable.
func (*EndpointIdentity) TableHeader() []string {
	return []string{"Endpoint", "Attachment", "Identity", "Source", "Labels"}
}

// TableRow implements statedb.TableWritable.
func (e *EndpointIdentity) TableRow() []string {
	return []string{strconv.Itoa(int(e.EndpointID)), e.Attachment, strconv.FormatUint(uint64(e.Identity), 10), string(e.Source),
		text(e.Labels)}
}

var endpointIndex = indexes.Unique("endpoint", indexes.Uint16, func(e *EndpointIdentity) uint16 { return e.EndpointID })
var endpointIdentityIndex = indexes.Shared("identity", indexes.Uint32, func(e *EndpointIdentity) uint32 { return e.Identity })

// ByEndpoint finds the identity of an endpoint by its local id.
var ByEndpoint = endpointIndex.Query

// NewEndpointTable makes the table "endpoint-identities".
func NewEndpointTable(db *statedb.DB) (statedb.RWTable[*EndpointIdentity], error) {
	return statedb.NewTable(db, "endpoint-identities", endpointIndex, endpointIdentityIndex)
}

// Of finds the identity of one attachment. It ignores a row of an earlier endpoint with the same id.
func Of(txn statedb.ReadTxn, table statedb.Table[*EndpointIdentity], id uint16, attachment string) (*EndpointIdentity, bool) {
	row, _, found := table.Get(txn, ByEndpoint(id))
	if !found || row.Attachment != attachment {
		return nil, false
	}
	return row, true
}
