package settings

import (
	"fmt"

	"github.com/spf13/pflag"
)

// Values of --routing-mode.
const (
	RoutingNative = "native" // the network, or --auto-direct-node-routes, routes the pods' addresses
	RoutingTunnel = "tunnel" // nodes encapsulate packets to pods of other nodes
)

// ProtocolVXLAN is the only value of --tunnel-protocol.
const ProtocolVXLAN = "vxlan"

const portVXLAN = 8472 // Linux's own, which Cilium keeps; IANA's is 4789

// TunnelOverhead is the length in bytes that a tunnel over IPv4 adds to a packet: headers of IPv4, UDP and VXLAN, and the inner Ethernet header.
const TunnelOverhead = 20 + 8 + 8 + 14

// Tunnel reports whether pods of different nodes reach each other through a tunnel.
func (a Agent) Tunnel() bool { return a.TunnelPort != 0 }

func (f Flags) tunnelFlags(flags *pflag.FlagSet) {
	flags.String("routing-mode", f.RoutingMode, "How packets reach pods of other nodes: native (the network, or --auto-direct-node-routes, routes their addresses) or "+
		"tunnel (VXLAN between the nodes' IPv4 addresses; not the default while it lacks what the guide names)")
	flags.String("tunnel-protocol", f.TunnelProtocol, "Encapsulation with --routing-mode=tunnel: vxlan")
	flags.Int("tunnel-port", f.TunnelPort, "UDP port of the tunnel, the same on all nodes and outside of --node-port-range; 0: 8472")
}

// tunnelPort checks the flags of the tunnel against the range of NodePort services. It returns 0 without a tunnel.
func (f Flags) tunnelPort(first, last uint16) (uint16, error) {
	switch f.RoutingMode {
	case RoutingNative:
		return 0, nil
	case RoutingTunnel:
	default:
		return 0, fmt.Errorf("--routing-mode=%q: use %s or %s", f.RoutingMode, RoutingNative, RoutingTunnel)
	}
	port := f.TunnelPort
	if port == 0 {
		port = portVXLAN
	}
	switch {
	case f.TunnelProtocol != ProtocolVXLAN:
		return 0, fmt.Errorf("--tunnel-protocol=%s: is not supported: use %s on all nodes", f.TunnelProtocol, ProtocolVXLAN)
	case port < 0 || port > 65535:
		return 0, fmt.Errorf("--tunnel-port=%d: want a port from 1 to 65535, or 0 for %d", f.TunnelPort, portVXLAN)
	case int(first) <= port && port <= int(last):
		return 0, fmt.Errorf("--tunnel-port=%d: is in the range %d to %d of --node-port-range: a service with this port would not be reached; use a port outside of it",
			port, first, last)
	case !f.EnableIPv4:
		return 0, fmt.Errorf("--routing-mode=%s needs --enable-ipv4=true: nodes send the tunnel between their IPv4 addresses; without IPv4 use --routing-mode=%s",
			RoutingTunnel, RoutingNative)
	}
	return uint16(port), nil
}
