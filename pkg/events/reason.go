package events

import "strconv"

// Reason says why a packet was dropped; 0 means that it was forwarded. Numbers and texts below [FirstOwn] are
// Cilium's, but for [VNIDiffers].
type Reason uint8

// Reasons that our programs give.
const (
	Forwarded        Reason = 0
	VNIDiffers       Reason = 129 // no drop: ipcache has another identity for the sender than the VNI, and counts
	SourceMAC        Reason = 130
	DestinationMAC   Reason = 131
	SourceIP         Reason = 132
	PolicyDenied     Reason = 133
	Malformed        Reason = 134 // a header contradicts itself or the length of the packet
	Truncated        Reason = 135 // the packet ends inside a header, or its header promises more than there is
	TooBig           Reason = 136 // longer than the way on takes
	UnknownL3        Reason = 139 // neither IP nor ARP
	MissedStep       Reason = 140 // the tail call to a step failed
	WriteFailed      Reason = 141 // the kernel did not let the program change the packet
	TunnelKey        Reason = 147 // not from the tunnel, or not to an address by which this node receives in it
	UnknownTarget    Reason = 150 // sent to a pod that does not have the address
	StaleIP          Reason = 151 // the address leads to an endpoint that no longer has it, or nowhere beyond the pod's link
	NoEndpoint       Reason = 152 // no local endpoint has the address
	FlowNotStored    Reason = 155 // the kernel did not let the program remember the flow
	IPv6Extension    Reason = 156 // too many extension headers, or they leave the packet
	NoBackend        Reason = 158 // the service has nobody who takes the packet
	ServiceProtocol  Reason = 159 // a packet of this protocol cannot be translated to another port
	NoTunnel         Reason = 160 // the tunnel device does not exist yet, or the node has no address for the tunnel
	UnknownFlow      Reason = 163 // an ICMP answer or error that belongs to no flow
	UnsupportedL2    Reason = 166 // a length where the EtherType belongs
	NoMapping        Reason = 167 // no free port to translate to, or nothing to translate back to
	NoRoute          Reason = 169 // the node has no way to the backend
	Encapsulated     Reason = 170 // a pod sends to the tunnel of a node
	UnknownIdentity  Reason = 171 // the identity of the peer is not known yet, or the VNI is none that a node sends
	UnknownSender    Reason = 172 // the link belongs to no endpoint
	ClusterIP        Reason = 174 // a service that serves nobody outside the cluster
	UnknownFragment  Reason = 175 // the first fragment did not pass before this one
	ForbiddenICMPv6  Reason = 176 // router advertisements and the like
	SourceRange      Reason = 177 // a client from outside whom the service does not admit
	PolicyDenyRule   Reason = 181 // a rule that denies decided, not the lack of one that allows
	VLANFilter       Reason = 182
	NoNode           Reason = 197 // the sender of a packet in the tunnel is no node of the cluster
	MulticastRefused Reason = 240 // multicast and broadcast stay on the pod's link
	Housekeeping     Reason = 241 // group reports, router solicitations, address probes: counted, without an event
	UnknownNeighbour Reason = 242 // ARP or neighbour discovery about somebody who is not the gateway
	FlowsFull        Reason = 243 // no room for one more established flow
	FlowsShare       Reason = 244 // the endpoint has as many established flows as it may
	NATFull          Reason = 245 // no room for one more translated flow
	HopsRunOut       Reason = 246 // its hops run out here
	NATShare         Reason = 247 // the endpoint has as many translated flows as it may
	ServicePort      Reason = 248 // no packet: a process of the node binds a port that serves a service
	InternalError    Reason = 249 // a step of the program returned a code that is no verdict
	TunnelSource     Reason = 250 // the node that sent a packet through the tunnel does not have its inner source
)

// FirstOwn is the first reason that Cilium does not have.
const FirstOwn Reason = 240

// FirstDrop is the first reason that means a drop in Cilium's numbering; those below count other things.
const FirstDrop Reason = 130

// IsPolicy tells whether a policy refused the packet.
func (r Reason) IsPolicy() bool { return r == PolicyDenied || r == PolicyDenyRule }

// String is Cilium's text, or ours for our own reasons.
func (r Reason) String() string {
	if text, ok := r.text(); ok {
		return text
	}
	return strconv.Itoa(int(r))
}

// text knows every number that may be met on a node where both agents ran.
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
	case MulticastRefused:
		return "Multicast not carried", true
	case Housekeeping:
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
