// Package v1beta holds the models of the health API, whose names are those of Cilium's: which nodes of the cluster this node reaches.
package v1beta

import (
	"time"

	"github.com/waggle-net/waggle/api/v1/models"
)

// BasePath begins the paths of the API.
const BasePath = "/v1beta"

// SocketName is the name of the socket in the state directory of the agent.
const SocketName = "health.sock"

// HealthResponse is the answer of GET /healthz: how this node is.
type HealthResponse struct {
	Cilium     models.StatusResponse `json:"cilium"`
	Uptime     string                `json:"uptime,omitempty"` // of the machine, as a Go duration
	SystemLoad LoadResponse          `json:"system-load"`
}

// LoadResponse is the load average of the machine, in decimal.
type LoadResponse struct {
	Last1min  string `json:"last1min,omitempty"`
	Last5min  string `json:"last5min,omitempty"`
	Last15min string `json:"last15min,omitempty"`
}

// HealthStatusResponse is the answer of GET /status and PUT /status/probe.
type HealthStatusResponse struct {
	Timestamp     string       `json:"timestamp,omitempty"`     // RFC 3339: beginning of the last probe
	ProbeInterval string       `json:"probeInterval,omitempty"` // between the probes of a node, as a Go duration
	Local         SelfStatus   `json:"local"`
	Nodes         []NodeStatus `json:"nodes,omitempty"` // sorted by name, the own node included
	// NotProbed is ours alone, of PUT /status/probe: names of the nodes that were not probed before the answer had to be sent. What the answer
	// says of them is older than the request.
	NotProbed []string `json:"notProbed,omitempty"`
}

// SelfStatus names the own node.
type SelfStatus struct {
	Name string `json:"name"`
}

// NodeStatus is what is known of a node.
type NodeStatus struct {
	Name           string           `json:"name"`
	Host           *AddressesStatus `json:"host,omitempty"`            // absent for a node without an address
	HealthEndpoint *AddressesStatus `json:"health-endpoint,omitempty"` // absent for a node without a health address
	Endpoint       *PathStatus      `json:"endpoint,omitempty"`        // the primary address of HealthEndpoint, for old clients
}

// AddressesStatus are the addresses of a node, of which the primary one is the IPv4 address where there is one.
type AddressesStatus struct {
	Primary   *PathStatus  `json:"primary-address,omitempty"`
	Secondary []PathStatus `json:"secondary-addresses,omitempty"`
}

// Paths are all addresses, the primary one first. It may be called on nil.
func (a *AddressesStatus) Paths() []PathStatus {
	if a == nil || a.Primary == nil {
		return nil
	}
	return append([]PathStatus{*a.Primary}, a.Secondary...)
}

// PathStatus is what is known of an address. A protocol without a verdict is absent.
type PathStatus struct {
	IP   string              `json:"ip,omitempty"`
	ICMP *ConnectivityStatus `json:"icmp,omitempty"`
	HTTP *ConnectivityStatus `json:"http,omitempty"`
}

// ConnectivityStatus is the verdict of a protocol.
type ConnectivityStatus struct {
	Latency    time.Duration `json:"latency,omitempty"`    // ns of the last answer
	Status     string        `json:"status,omitempty"`     // empty: reachable; otherwise the error of the last probe
	LastProbed string        `json:"lastProbed,omitempty"` // RFC 3339: time of the probe that the verdict is of
}
