package events

import "strconv"

// Reason is the reason of a drop; 0 means that the packet was forwarded. Numbers and texts below 240 are Cilium's,
// except [VNIDiffers].
type Reason uint8

// Reasons of the programs.
const (
	Forwarded        Reason = 0
	VNIDiffers       Reason = 129 // no drop: ipcache has another identity for the sender than the VNI; the one in ipcache is used
	SourceMAC        Reason = 130
	DestinationMAC   Reason = 131
	SourceIP         Reason = 132
	PolicyDenied     Reason = 133
	Malformed        Reason = 134 // a header contradicts itself or the length of the packet
	Truncated        Reason = 135 // the packet ends inside a header, or is shorter than its header says
	TooBig           Reason = 136 // longer than the path carries
	UnknownL3        Reason = 139 // neither IP nor ARP
	MissedStep       Reason = 140 // the tail call to a step failed
	WriteFailed      Reason = 141 // the kernel rejected a change of the packet
	TunnelKey        Reason = 147 // not from the tunnel, or not to an underlay address of this node
	UnknownTarget    Reason = 150 // sent to a pod that does not have the address
	StaleIP          Reason = 151 // the address leads to an endpoint that no longer has it, or is not valid beyond the pod's link
	NoEndpoint       Reason = 152 // no local endpoint has the address
	FlowNotStored    Reason = 155 // the kernel rejected the entry of the flow
	IPv6Extension    Reason = 156 // too many extension headers, or they exceed the packet
	NoBackend        Reason = 158 // the service has no backend
	ServiceProtocol  Reason = 159 // a packet of this protocol cannot be translated to another port
	NoTunnel         Reason = 160 // the tunnel device does not exist yet, or the node has no address for the tunnel
	UnknownFlow      Reason = 163 // an ICMP reply or error that belongs to no flow
	UnsupportedL2    Reason = 166 // a length in place of the EtherType
	NoMapping        Reason = 167 // no free port to translate to, or no entry to translate a reply by
	NoRoute          Reason = 169 // the node has no route to the backend
	Encapsulated     Reason = 170 // a pod sends to the tunnel of a node
	UnknownIdentity  Reason = 171 // the identity of the peer is not known yet, or no node sends this VNI
	UnknownSender    Reason = 172 // the link belongs to no endpoint
	ClusterIP        Reason = 174 // an external client of a service that serves only the cluster
	UnknownFragment  Reason = 175 // the first fragment did not pass on this node before this one
	ForbiddenICMPv6  Reason = 176 // router advertisements and the like
	SourceRange      Reason = 177 // the service does not allow this external client
	PolicyDenyRule   Reason = 181 // a rule denies; with PolicyDenied no rule allows
	VLANFilter       Reason = 182
	NoNode           Reason = 197 // the outer source of a packet for the tunnel is no node of the cluster
	Multicast        Reason = 240 // multicast and broadcast stay on the pod's link
	ControlTraffic   Reason = 241 // control traffic (group reports, router solicitations, address probes): counted, without an event
	UnknownNeighbour Reason = 242 // ARP or neighbour discovery for an address other than the gateway's
	FlowsFull        Reason = 243 // no capacity for another established flow
	FlowsShare       Reason = 244 // the endpoint has used up its quota of established flows
	NATFull          Reason = 245 // no capacity for another translated flow
	HopsRunOut       Reason = 246 // the TTL or hop limit expires on this node
	NATShare         Reason = 247 // the endpoint has used up its quota of translated flows
	ServicePort      Reason = 248 // no packet: a process of the node binds a port that serves a service
	InternalError    Reason = 249 // a step of the program returned a code that is no verdict
	TunnelSource     Reason = 250 // the node that sent a packet through the tunnel does not have its inner source
)

// FirstDrop is the lowest reason of a drop in Cilium's numbering. Lower numbers count other events.
const FirstDrop Reason = 130

// IsPolicy reports whether a policy denied the packet.
func (r Reason) IsPolicy() bool { return r == PolicyDenied || r == PolicyDenyRule }

// String returns the text of a reason, which is Cilium's for its numbers; the number when it is unknown.
func (r Reason) String() string {
	if text, ok := r.text(); ok {
		return text
	}
	return strconv.Itoa(int(r))
}

// text returns the text of every number that can occur on a node where both agents ran.
func (r Reason) text() (string, bool) {
	switch {
	case r == Forwarded:
		return "Success", true
	case r >= FirstDrop && int(r-FirstDrop) < len(dropTexts):
		text := dropTexts[r-FirstDrop]
		return text, text != ""
	}
	switch r {
	case 2:
		return "Invalid packet", true
	case 3:
		return "Interface", true
	case 4:
		return "Interface Decrypted", true
	case 9:
		return "Fragmented packet", true
	case VNIDiffers:
		return "VNI is not the identity in ipcache", true
	case Multicast:
		return "Multicast not carried", true
	case ControlTraffic:
		return "Link housekeeping", true
	case UnknownNeighbour:
		return "Neighbour is not the gateway", true
	case FlowsFull:
		return "CT: Table of established flows is full", true
	case FlowsShare:
		return "CT: Endpoint has used up its share of flows", true
	case NATFull:
		return "NAT: Table of translated flows is full", true
	case HopsRunOut:
		return "Hops run out", true
	case NATShare:
		return "NAT: Endpoint has used up its share of translated flows", true
	case ServicePort:
		return "Port serves a service", true
	case InternalError:
		return "Internal error of the datapath", true
	case TunnelSource:
		return "Inner source is not of the sending node", true
	}
	return "", false
}
