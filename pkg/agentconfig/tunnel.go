package agentconfig

import (
	"fmt"

	"github.com/spf13/pflag"
)

// Values of --routing-mode.
const (
	RoutingNative = "native" // the network, or --auto-direct-node-routes, routes the pods' addresses
	RoutingTunnel = "tunnel" // nodes encapsulate packets to pods of other nodes
	RoutingHybrid = "hybrid" // as tunnel, but nodes on the same link are reached without it while a test of the direct path passes
)

// ProtocolVXLAN is the only value of --tunnel-protocol.
const ProtocolVXLAN = "vxlan"

const portVXLAN = 8472 // default of Linux and Cilium; IANA assigned 4789

// Values of --underlay-protocol: the family of the addresses between which nodes send the tunnel.
const (
	UnderlayAuto = "auto" // IPv4 unless it is disabled
	UnderlayIPv4 = "ipv4"
	UnderlayIPv6 = "ipv6"
)

// Lengths in bytes of what a tunnel adds to a packet.
const (
	vxlanOverhead = 8 + 8 + 14 // headers of UDP and VXLAN, and the inner Ethernet header
	ipv4Overhead  = 20
	ipv6Overhead  = 40
)

// Tunnel reports whether pods of different nodes reach each other through a tunnel.
func (a Agent) Tunnel() bool { return a.TunnelPort != 0 }

// RoutingMode returns the value of --routing-mode.
func (a Agent) RoutingMode() string {
	switch {
	case a.Hybrid:
		return RoutingHybrid
	case a.Tunnel():
		return RoutingTunnel
	}
	return RoutingNative
}

// TunnelOverhead returns the length in bytes that the tunnel adds to a packet: 50 over IPv4, 70 over IPv6, and 0 without a tunnel.
func (a Agent) TunnelOverhead() int {
	switch {
	case !a.Tunnel():
		return 0
	case a.UnderlayIPv6:
		return vxlanOverhead + ipv6Overhead
	}
	return vxlanOverhead + ipv4Overhead
}

// Underlay returns the family of the underlay, "IPv4" or "IPv6".
func (a Agent) Underlay() string {
	if a.UnderlayIPv6 {
		return "IPv6"
	}
	return "IPv4"
}

func (f Flags) tunnelFlags(flags *pflag.FlagSet) {
	flags.String("routing-mode", f.RoutingMode, "Path to pods of other nodes: tunnel (VXLAN), native (routes, see --auto-direct-node-routes) or "+
		"hybrid (direct on one link while a test passes, else tunnel)")
	flags.String("tunnel-protocol", f.TunnelProtocol, "Encapsulation with --routing-mode=tunnel and hybrid: vxlan")
	flags.String("underlay-protocol", f.UnderlayProtocol, "Family of the node addresses that the tunnel uses: ipv4, ipv6, or auto, which is ipv4 unless IPv4 is disabled")
	flags.Bool("enable-host-legacy-routing", f.HostLegacyRouting, "Forward packets between pods of this node and of other nodes through the network stack, "+
		"with netfilter (chain FORWARD); if false, programs forward them")
	f.metricFlags(flags)
	flags.Int("tunnel-port", f.TunnelPort, "UDP port of the tunnel, the same on all nodes and outside of --node-port-range; 0: 8472")
}

// tunnelPort checks the flags of the tunnel against the range of NodePort services. It returns 0 without a tunnel. The protocol is checked in every mode:
// with native routing, Cilium uses Geneve for DSR.
func (f Flags) tunnelPort(first, last uint16) (uint16, error) {
	switch {
	case f.TunnelProtocol != ProtocolVXLAN:
		return 0, fmt.Errorf("--tunnel-protocol=%s: is not supported: use %s on all nodes", f.TunnelProtocol, ProtocolVXLAN)
	case f.RoutingMode == RoutingNative:
		return 0, nil
	case f.RoutingMode != RoutingTunnel && f.RoutingMode != RoutingHybrid:
		return 0, fmt.Errorf("--routing-mode=%q: use %s, %s or %s", f.RoutingMode, RoutingNative, RoutingTunnel, RoutingHybrid)
	}
	port := f.TunnelPort
	if port == 0 {
		port = portVXLAN
	}
	switch {
	case port < 0 || port > 65535:
		return 0, fmt.Errorf("--tunnel-port=%d: want a port from 1 to 65535, or 0 for %d", f.TunnelPort, portVXLAN)
	case int(first) <= port && port <= int(last):
		return 0, fmt.Errorf("--tunnel-port=%d: is in the range %d to %d of --node-port-range: a service with this port would not be reached; use a port outside of it",
			port, first, last)
	}
	return uint16(port), nil
}

// underlayIPv6 reports whether the tunnel is sent between IPv6 addresses. Without a tunnel the families are not checked.
func (f Flags) underlayIPv6() (bool, error) {
	ipv6 := f.UnderlayProtocol == UnderlayIPv6
	switch {
	case !ipv6 && f.UnderlayProtocol != UnderlayIPv4 && f.UnderlayProtocol != UnderlayAuto:
		return false, fmt.Errorf("--underlay-protocol=%q: use %s, %s or %s", f.UnderlayProtocol, UnderlayAuto, UnderlayIPv4, UnderlayIPv6)
	case f.RoutingMode == RoutingNative:
		return false, nil
	case f.UnderlayProtocol == UnderlayAuto:
		return !f.EnableIPv4, nil
	case ipv6 && !f.EnableIPv6 || !ipv6 && !f.EnableIPv4:
		return false, fmt.Errorf("--underlay-protocol=%s needs --enable-%s=true: enable the family, or use --underlay-protocol=%s", f.UnderlayProtocol,
			f.UnderlayProtocol, UnderlayAuto)
	}
	return ipv6, nil
}
