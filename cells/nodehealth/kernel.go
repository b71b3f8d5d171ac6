package nodehealth

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"
)

// kernel is what this cell asks of the network and of the machine.
type kernel interface {
	// Echo sends one ICMP echo request and returns the time until its reply.
	Echo(ctx context.Context, to netip.Addr) (time.Duration, error)
	// Hello asks the responder at an address and returns the time from the first packet to the answer.
	Hello(ctx context.Context, to netip.AddrPort) (time.Duration, error)
	// ListenHello opens the responder's port on all addresses.
	ListenHello(ctx context.Context, port uint16) (net.Listener, error)
	// ListenAPI opens the socket of the health API.
	ListenAPI(path string) (net.Listener, error)
}

// errImpeded is part of errors that this node causes, and that say nothing about another one.
var errImpeded = errors.New("not probed")

// impeded reports whether an error of a system call is about this node: it lacks a right, memory, descriptors, ports or the address family.
func impeded(err error) bool {
	for _, local := range []syscall.Errno{syscall.EPERM, syscall.EACCES, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS,
		syscall.EADDRNOTAVAIL, syscall.EAFNOSUPPORT, syscall.EPROTONOSUPPORT} {
		if errors.Is(err, local) {
			return true
		}
	}
	return false
}
