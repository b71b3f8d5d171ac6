// Package v1beta contains the models of the health API, which reports the nodes of the cluster that this node reaches. Names on the wire are the names of the
// health API of Cilium.
package v1beta

import (
	"time"

	"github.com/waggle-net/waggle/api/v1/models"
)

// BasePath is the prefix of the paths of the API.
const BasePath = "/v1beta"

// SocketName is the name of the socket in the state directory of the agent.
const SocketName = "health.sock"

// HealthResponse is the response to GET /healthz: the status of this node.
type HealthResponse struct {
	Cilium     models.StatusResponse `json:"cilium"`
	Uptime     string                `json:"uptime,omitempty"` // uptime of the machine as a Go duration
	SystemLoad LoadResponse          `json:"system-load"`
}

// LoadResponse is the load average of the machine, as decimal numbers.
type LoadResponse struct {
	Last1min  string `json:"last1min,omitempty"`
	Last5min  string `json:"last5min,omitempty"`
	Last15min string `json:"last15min,omitempty"`
}

// HealthStatusResponse is the response to GET /status and PUT /status/probe.
type HealthStatusResponse struct {
	Timestamp     string       `json:"timestamp,omitempty"`     // start of the last probe (RFC 3339)
	ProbeInterval string       `json:"probeInterval,omitempty"` // interval between probes of a node with flows, as a Go duration
	Local         SelfStatus   `json:"local"`
	Nodes         []NodeStatus `json:"nodes,omitempty"` // sorted by name, including this node
	// NotProbed is an extension of PUT /status/probe to the API of Cilium: names of the nodes that were not probed before the response had to be sent. Their
	// status in the response is older than the request.
	NotProbed []string `json:"notProbed,omitempty"`
}

// SelfStatus contains the name of this node.
type SelfStatus struct {
	Name string `json:"name"`
}

// NodeStatus is the result of the probes of a node.
type NodeStatus struct {
	Name           string           `json:"name"`
	Host           *AddressesStatus `json:"host,omitempty"`            // absent for a node without an address
	HealthEndpoint *AddressesStatus `json:"health-endpoint,omitempty"` // absent for a node without a health address
	Endpoint       *PathStatus      `json:"endpoint,omitempty"`        // primary address of HealthEndpoint, for old clients
}

// AddressesStatus contains the results for the addresses of a node. The primary address is the IPv4 address if the node has one.
type AddressesStatus struct {
	Primary   *PathStatus  `json:"primary-address,omitempty"`
	Secondary []PathStatus `json:"secondary-addresses,omitempty"`
}

// Paths returns the results for all addresses, the primary one first. The receiver may be nil.
func (a *AddressesStatus) Paths() []PathStatus {
	if a == nil || a.Primary == nil {
		return nil
	}
	return append([]PathStatus{*a.Primary}, a.Secondary...)
}

// PathStatus contains the results for an address. A protocol without a result is absent.
type PathStatus struct {
	IP   string              `json:"ip,omitempty"`
	ICMP *ConnectivityStatus `json:"icmp,omitempty"`
	HTTP *ConnectivityStatus `json:"http,omitempty"`
}

// ConnectivityStatus is the result for a protocol.
type ConnectivityStatus struct {
	Latency    time.Duration `json:"latency,omitempty"`    // latency of the last reply, in ns
	Status     string        `json:"status,omitempty"`     // error of the last probe; empty: reachable
	LastProbed string        `json:"lastProbed,omitempty"` // time of the probe with this result (RFC 3339)
}
