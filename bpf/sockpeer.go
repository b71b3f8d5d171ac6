package bpf

import "net/netip"

// SockPeer is a value of sock_connected: the service that a process asked for, and the backend that its socket got.
type SockPeer struct {
	Service     AddrKey
	Backend     AddrKey
	ServicePort uint16 // in wire order, as the other
	BackendPort uint16
	BackendId   uint32 //nolint:revive // as C says it
	Slot        uint32
	Pad         uint32
	Used        uint64
}

// Target is the backend; invalid when there is none.
func (p *SockPeer) Target() netip.AddrPort {
	return netip.AddrPortFrom(AddrOf(p.Backend), wirePort(p.BackendPort))
}

// Asked is the service's address; invalid when there is none.
func (p *SockPeer) Asked() netip.AddrPort {
	return netip.AddrPortFrom(AddrOf(p.Service), wirePort(p.ServicePort))
}

// NewSockPeer makes a value as the programs do.
func NewSockPeer(service, backend netip.AddrPort, id uint32) SockPeer {
	return SockPeer{Service: NewAddrKey(service.Addr()), Backend: NewAddrKey(backend.Addr()), ServicePort: wirePort(service.Port()),
		BackendPort: wirePort(backend.Port()), BackendId: id}
}

// SockListed is what the iterators of [SockList] say of a socket. It may be read while the socket is connected again: then Peer is half of one
// and half of the next.
type SockListed struct {
	Peer   SockPeer
	Cookie uint64
}
