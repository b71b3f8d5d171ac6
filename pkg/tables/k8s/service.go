package k8s

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/rootwatch"
)

// ServicePort is one port of a service.
type ServicePort struct {
	Name       string `json:"name,omitempty"`
	Protocol   string `json:"protocol"` // "TCP", "UDP" or "SCTP"; never empty
	Port       uint16 `json:"port"`
	NodePort   uint16 `json:"nodePort,omitempty"` // 0 when none
	TargetPort string `json:"targetPort"`         // number or name of a container port; never empty
}

// Service is a service of the cluster. Maps and slices are never changed in place.
type Service struct {
	Namespace   string            `json:"namespace"`
	Name        string            `json:"name"`
	UID         string            `json:"uid,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`   // only the labels that select the service proxy
	Labelled    string            `json:"labelled,omitempty"` // all labels, "key=value,...", by which policies choose Services; [TooManyLabels] in place of too many
	Annotations map[string]string `json:"annotations,omitempty"`
	Created     int64             `json:"created,omitempty"` // Unix time in seconds; 0 if unknown

	Type        string        `json:"type"` // "ClusterIP", "NodePort", "LoadBalancer" or "ExternalName"
	ClusterIPs  []netip.Addr  `json:"clusterIPs,omitempty"`
	ExternalIPs []netip.Addr  `json:"externalIPs,omitempty"`
	IngressIPs  []netip.Addr  `json:"ingressIPs,omitempty"` // status.loadBalancer, without addresses that the load balancer itself terminates (ipMode Proxy)
	Ports       []ServicePort `json:"ports,omitempty"`
	Selects     string        `json:"selects,omitempty"` // the selector, "key=value,..."; empty: another writer manages the endpoints

	Affinity             time.Duration  `json:"affinity,omitempty"`     // timeout of client affinity; 0 without affinity
	SourceRanges         []netip.Prefix `json:"sourceRanges,omitempty"` // empty: all sources
	HealthCheckNodePort  uint16         `json:"healthCheckNodePort,omitempty"`
	Headless             bool           `json:"headless,omitempty"` // clusterIP: None
	ExternalLocal        bool           `json:"externalLocal,omitempty"`
	InternalLocal        bool           `json:"internalLocal,omitempty"`
	PublishNotReadyAddrs bool           `json:"publishNotReadyAddrs,omitempty"`
	// Problems name the unreadable addresses and ranges. Such addresses are omitted, and such a range allows no client.
	Problems []string `json:"problems,omitempty"`
}

// NoSourceRange is the range of a Service whose source ranges are all unreadable: no packet has this source.
var NoSourceRange = netip.PrefixFrom(netip.IPv4Unspecified(), 32)

// Key is "namespace/name".
func (s *Service) Key() string { return s.Namespace + "/" + s.Name }

// TooManyLabels is the value of [Service.Labelled] for a Service whose labels are too long to be kept. No key of a label has a colon.
const TooManyLabels = "labels: too many"

// Labels of a Service that select its proxy.
const (
	LabelHeadless         = "service.kubernetes.io/headless"
	LabelServiceProxyName = "service.kubernetes.io/service-proxy-name"
)

// ServedBy reports whether the proxy with that name serves the Service; the empty name is the cluster's own proxy. No proxy serves a headless Service
// or one of type ExternalName.
func (s *Service) ServedBy(proxy string) bool {
	_, headless := s.Labels[LabelHeadless]
	return !s.Headless && !headless && s.Type != "ExternalName" && s.Labels[LabelServiceProxyName] == proxy
}

// Equal compares everything.
func (s *Service) Equal(o *Service) bool {
	return s.sameScalars(o) && maps.Equal(s.Labels, o.Labels) && maps.Equal(s.Annotations, o.Annotations) &&
		slices.Equal(s.ClusterIPs, o.ClusterIPs) && slices.Equal(s.ExternalIPs, o.ExternalIPs) &&
		slices.Equal(s.IngressIPs, o.IngressIPs) && slices.Equal(s.Ports, o.Ports) && s.Selects == o.Selects &&
		slices.Equal(s.SourceRanges, o.SourceRanges) && slices.Equal(s.Problems, o.Problems)
}

func (s *Service) sameScalars(o *Service) bool {
	return s.Namespace == o.Namespace && s.Name == o.Name && s.UID == o.UID && s.Created == o.Created && s.Type == o.Type && s.Headless == o.Headless && s.Labelled == o.Labelled &&
		s.Affinity == o.Affinity && s.ExternalLocal == o.ExternalLocal && s.InternalLocal == o.InternalLocal &&
		s.HealthCheckNodePort == o.HealthCheckNodePort && s.PublishNotReadyAddrs == o.PublishNotReadyAddrs
}

// TableHeader implements statedb.TableWritable.
func (*Service) TableHeader() []string {
	return []string{"Service", "Type", "ClusterIPs", "Ports", "Selector"}
}

// TableRow implements statedb.TableWritable.
func (s *Service) TableRow() []string {
	ips := make([]string, len(s.ClusterIPs))
	for i, a := range s.ClusterIPs {
		ips[i] = a.String()
	}
	ports := make([]string, len(s.Ports))
	for i, p := range s.Ports {
		ports[i] = strconv.Itoa(int(p.Port)) + "/" + p.Protocol
	}
	return []string{s.Key(), s.Type, strings.Join(ips, ","), strings.Join(ports, ","), s.Selects}
}

var serviceIndex = indexes.Unique("name", indexes.String, (*Service).Key)

// ServiceByName finds a service by "namespace/name".
var ServiceByName = serviceIndex.Query

// NewServiceTable makes the table "k8s-services". A watch channel of a query closes after any change of the table, because channels of single rows would take more
// than 0.1 kB for each Service of the cluster.
func NewServiceTable(db *statedb.DB) (statedb.RWTable[*Service], error) {
	table, err := statedb.NewTable(db, "k8s-services", serviceIndex)
	if err != nil {
		return nil, err
	}
	return table, rootwatch.Only(db, table)
}
