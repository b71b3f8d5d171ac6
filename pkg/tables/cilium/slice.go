package cilium

import (
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
)

// EndpointSlice is a CiliumEndpointSlice: pods of one namespace. Rows are immutable.
type EndpointSlice struct {
	Name      string `json:"name"`
	UID       string `json:"uid,omitempty"`
	Namespace string `json:"namespace"`         // of the pods
	Version   uint64 `json:"version,omitempty"` // its resourceVersion; 0 if that is not a number
	// Endpoints are sorted by key, without duplicates, and all in Namespace.
	Endpoints []*Endpoint `json:"endpoints,omitempty"`
}

// Key is the name.
func (s *EndpointSlice) Key() string { return s.Name }

// Find returns the endpoint with a key ("namespace/name"), or nil if the slice does not have it.
func (s *EndpointSlice) Find(key string) *Endpoint {
	at, found := slices.BinarySearchFunc(s.Endpoints, key, func(ep *Endpoint, key string) int { return strings.Compare(ep.Key(), key) })
	if !found {
		return nil
	}
	return s.Endpoints[at]
}

// Newer reports whether s was written after o. Of slices with the same version the one with the greater name counts as newer.
func (s *EndpointSlice) Newer(o *EndpointSlice) bool {
	return s.Version > o.Version || s.Version == o.Version && s.Name > o.Name
}

// Replaces makes s share the equal endpoints of the row that it replaces.
func (s *EndpointSlice) Replaces(old *EndpointSlice) {
	rest := old.Endpoints
	for i, ep := range s.Endpoints {
		for len(rest) > 0 && rest[0].Key() < ep.Key() {
			rest = rest[1:]
		}
		if len(rest) > 0 && rest[0].Equal(ep) {
			s.Endpoints[i] = rest[0]
		}
	}
}

// Equal compares everything.
func (s *EndpointSlice) Equal(o *EndpointSlice) bool {
	return s.Name == o.Name && s.UID == o.UID && s.Namespace == o.Namespace && s.Version == o.Version &&
		slices.EqualFunc(s.Endpoints, o.Endpoints, (*Endpoint).Equal)
}

// TableHeader implements statedb.TableWritable.
func (*EndpointSlice) TableHeader() []string { return []string{"Slice", "Namespace", "Endpoints"} }

// TableRow implements statedb.TableWritable.
func (s *EndpointSlice) TableRow() []string {
	return []string{s.Name, s.Namespace, strconv.Itoa(len(s.Endpoints))}
}

var endpointSliceIndex = indexes.Unique("name", indexes.String, func(o *EndpointSlice) string { return o.Name })

// EndpointSliceByName finds a row.
var EndpointSliceByName = endpointSliceIndex.Query

// NewEndpointSliceTable makes the table "cilium-endpointslices". It has rows only while slices are read.
func NewEndpointSliceTable(db *statedb.DB) (statedb.RWTable[*EndpointSlice], error) {
	return statedb.NewTable(db, "cilium-endpointslices", endpointSliceIndex)
}

// NewOwnEndpointTable makes the table "cilium-endpoints-own": the CiliumEndpoints that this node wrote, while slices are read.
func NewOwnEndpointTable(db *statedb.DB) (statedb.RWTable[*Endpoint], error) {
	return statedb.NewTable(db, "cilium-endpoints-own", endpointIndex)
}

// NewListedEndpointTable makes the table "cilium-endpoints-listed": all CiliumEndpoints, while slices are wanted and are not complete.
func NewListedEndpointTable(db *statedb.DB) (statedb.RWTable[*Endpoint], error) {
	return statedb.NewTable(db, "cilium-endpoints-listed", endpointIndex)
}
