// Package services holds the services that this node balances: Kubernetes Services and host ports of pods of this node.
package services

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/printable"
	"github.com/waggle-net/waggle/pkg/rootwatch"
)

// Service is one load-balanced service. Slices are shared with the row of its source and never changed in place.
type Service struct {
	// Name is "namespace/name"; for a host port of a pod "namespace/pod:host-port/<uid>/<port>", so that a later pod with the same name is another
	// service.
	Name string `json:"name"`
	Type string `json:"type"` // "ClusterIP", "NodePort", "LoadBalancer" or "HostPort"

	ClusterIPs []netip.Addr `json:"clusterIPs,omitempty"`
	// Claims are the addresses that the service wants, in order. It owns the addresses whose rows in frontends name it.
	Claims   []loadbalancer.Address `json:"claims,omitempty"`
	Backends []uint32               `json:"backends,omitempty"` // ids of all its backends in any state, ascending

	Affinity            time.Duration  `json:"affinity,omitempty"` // timeout of client affinity; 0 without affinity
	ExternalLocal       bool           `json:"externalLocal,omitempty"`
	InternalLocal       bool           `json:"internalLocal,omitempty"`
	HealthCheckNodePort uint16         `json:"healthCheckNodePort,omitempty"` // 0 for none
	SourceRanges        []netip.Prefix `json:"sourceRanges,omitempty"`
	// LocalReady counts the ready backends on this node, each once. The health check node port reports it.
	LocalReady int `json:"localReady"`
	// Problems name the parts of the object that are not in force, and why. Empty without a problem.
	Problems []string `json:"problems,omitempty"`
}

// Equal compares everything.
func (s *Service) Equal(o *Service) bool {
	return s.Name == o.Name && s.Type == o.Type && s.Affinity == o.Affinity && s.ExternalLocal == o.ExternalLocal &&
		s.InternalLocal == o.InternalLocal && s.HealthCheckNodePort == o.HealthCheckNodePort && s.LocalReady == o.LocalReady &&
		slices.Equal(s.ClusterIPs, o.ClusterIPs) && slices.Equal(s.Claims, o.Claims) && slices.Equal(s.Backends, o.Backends) &&
		slices.Equal(s.SourceRanges, o.SourceRanges) && slices.Equal(s.Problems, o.Problems)
}

// TableHeader implements statedb.TableWritable.
func (*Service) TableHeader() []string {
	return []string{"Service", "Type", "Affinity", "ExternalLocal", "InternalLocal", "LocalReady", "Problems"}
}

// TableRow implements statedb.TableWritable.
func (s *Service) TableRow() []string {
	affinity := "-"
	if s.Affinity > 0 {
		affinity = s.Affinity.String()
	}
	problems := "-"
	if len(s.Problems) > 0 {
		problems = strings.Join(s.Problems, "; ")
	}
	return []string{printable.Text(s.Name), s.Type, affinity, strconv.FormatBool(s.ExternalLocal), strconv.FormatBool(s.InternalLocal),
		strconv.Itoa(s.LocalReady), printable.Text(problems)}
}

var nameIndex = indexes.Unique("name", indexes.String, func(s *Service) string { return s.Name })

// ByName finds a service.
var ByName = nameIndex.Query

var healthCheckIndex = indexes.OmitZero(indexes.Shared("health-check", indexes.Bool, func(s *Service) bool { return s.HealthCheckNodePort != 0 }))

// WithHealthCheck finds the services with a health check node port, sorted by name.
var WithHealthCheck = healthCheckIndex.Query(true)

// NewTable makes the table "services". A watch channel of [ByName] closes after any change of the table, and the channel of [WithHealthCheck] after a change of a
// service with a health check node port, because channels of single rows would take more than 0.1 kB for each service.
func NewTable(db *statedb.DB) (statedb.RWTable[*Service], error) {
	table, err := statedb.NewTable(db, "services", nameIndex, healthCheckIndex)
	if err != nil {
		return nil, err
	}
	return table, rootwatch.Only(db, table)
}
