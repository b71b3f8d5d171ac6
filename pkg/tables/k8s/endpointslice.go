package k8s

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/rootwatch"
)

// SlicePort is one port of all endpoints of a slice.
type SlicePort struct {
	Name     string `json:"name,omitempty"` // name of the service's port
	Protocol string `json:"protocol"`       // never empty
	Port     uint16 `json:"port,omitempty"` // 0 means all ports
}

// SliceEndpoint is one backend of a slice.
type SliceEndpoint struct {
	Addrs       []netip.Addr `json:"addrs,omitempty"`
	Ready       bool         `json:"ready,omitempty"` // condition, with the default of Kubernetes
	Serving     bool         `json:"serving,omitempty"`
	Terminating bool         `json:"terminating,omitempty"`
	NodeName    string       `json:"nodeName,omitempty"`
	Zone        string       `json:"zone,omitempty"`
	ForZones    []string     `json:"forZones,omitempty"` // hint: zones that should use the endpoint
	ForNodes    []string     `json:"forNodes,omitempty"` // hint: nodes that should use the endpoint
	Pod         string       `json:"pod,omitempty"`      // "namespace/name"; empty if it is not a pod
}

func (e SliceEndpoint) equal(o SliceEndpoint) bool {
	return e.Ready == o.Ready && e.Serving == o.Serving && e.Terminating == o.Terminating && e.NodeName == o.NodeName &&
		e.Zone == o.Zone && e.Pod == o.Pod && slices.Equal(e.Addrs, o.Addrs) && slices.Equal(e.ForZones, o.ForZones) && slices.Equal(e.ForNodes, o.ForNodes)
}

// EndpointSlice holds a part of the backends of a service. Slices are never changed in place.
type EndpointSlice struct {
	Namespace   string          `json:"namespace"`
	Name        string          `json:"name"`
	UID         string          `json:"uid,omitempty"`
	Service     string          `json:"service,omitempty"` // name, in the same namespace; empty if the slice belongs to no service
	AddressType string          `json:"addressType"`       // "IPv4", "IPv6" or "FQDN"; the last has no endpoints in the table
	Ports       []SlicePort     `json:"ports,omitempty"`
	Endpoints   []SliceEndpoint `json:"endpoints,omitempty"`
}

// Key is "namespace/name".
func (s *EndpointSlice) Key() string { return s.Namespace + "/" + s.Name }

// Equal compares everything.
func (s *EndpointSlice) Equal(o *EndpointSlice) bool {
	return s.Namespace == o.Namespace && s.Name == o.Name && s.UID == o.UID && s.Service == o.Service &&
		s.AddressType == o.AddressType && slices.Equal(s.Ports, o.Ports) &&
		slices.EqualFunc(s.Endpoints, o.Endpoints, SliceEndpoint.equal)
}

// TableHeader implements statedb.TableWritable.
func (*EndpointSlice) TableHeader() []string {
	return []string{"Slice", "Service", "Ports", "Endpoints"}
}

// TableRow implements statedb.TableWritable.
func (s *EndpointSlice) TableRow() []string {
	ports := make([]string, len(s.Ports))
	for i, p := range s.Ports {
		ports[i] = strconv.Itoa(int(p.Port)) + "/" + p.Protocol
	}
	return []string{s.Key(), s.Service, strings.Join(ports, ","), strconv.Itoa(len(s.Endpoints))}
}

var endpointSliceIndex = indexes.Unique("name", indexes.String, (*EndpointSlice).Key)

// EndpointSliceByName finds a slice by "namespace/name".
var EndpointSliceByName = endpointSliceIndex.Query

var sliceServiceIndex = indexes.OmitZero(indexes.Shared("service", indexes.String, func(s *EndpointSlice) string {
	if s.Service == "" {
		return ""
	}
	return s.Namespace + "/" + s.Service
}))

// EndpointSlicesByService finds the slices of a service by "namespace/name".
var EndpointSlicesByService = sliceServiceIndex.Query

// apiServerIndex has at most one row, so the watch channel of its query closes only after a change of this row.
var apiServerIndex = indexes.OmitZero(indexes.Unique("api-server", indexes.Bool, func(s *EndpointSlice) bool {
	return s.Namespace == "default" && s.Name == "kubernetes"
}))

// APIServerSlice finds "default/kubernetes", the only slice to which API servers write their addresses; they repair it every few seconds. Other users could create
// a slice that claims to belong to the same service.
var APIServerSlice = apiServerIndex.Query(true)

// NewEndpointSliceTable makes the table "k8s-endpointslices". A watch channel of the queries [EndpointSliceByName] and [EndpointSlicesByService] closes after any
// change of the table, because channels of single rows would take more than 0.2 kB for each Service of the cluster.
func NewEndpointSliceTable(db *statedb.DB) (statedb.RWTable[*EndpointSlice], error) {
	table, err := statedb.NewTable(db, "k8s-endpointslices", endpointSliceIndex, sliceServiceIndex, apiServerIndex)
	if err != nil {
		return nil, err
	}
	return table, rootwatch.Only(db, table)
}
