package bpf

import "net/netip"

// SockPeer is a value of sock_connected: the service that a process requested, and the backend of its socket.
type SockPeer struct {
	Service     AddrKey
	Backend     AddrKey
	ServicePort uint16 // in network order, like BackendPort
	BackendPort uint16
	BackendId   uint32 //nolint:revive // as C says it
	Slot        uint32
	Pad         uint32
	Used        uint64
}

// Target returns the backend; invalid when there is none.
func (p *SockPeer) Target() netip.AddrPort {
	return netip.AddrPortFrom(AddrOf(p.Backend), wirePort(p.BackendPort))
}

// ServiceAddr returns the service's address; invalid when there is none.
func (p *SockPeer) ServiceAddr() netip.AddrPort {
	return netip.AddrPortFrom(AddrOf(p.Service), wirePort(p.ServicePort))
}

// NewSockPeer returns a value in the format of the programs.
func NewSockPeer(service, backend netip.AddrPort, id uint32) SockPeer {
	return SockPeer{Service: NewAddrKey(service.Addr()), Backend: NewAddrKey(backend.Addr()), ServicePort: wirePort(service.Port()),
		BackendPort: wirePort(backend.Port()), BackendId: id}
}

// SockListed is a socket as the iterators of [SockList] return it. If the socket is reconnected during the read, Peer may mix the previous and the next
// value.
type SockListed struct {
	Peer   SockPeer
	Cookie uint64
}
