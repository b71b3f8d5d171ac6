package tests

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
)

// BenchmarkPrivilegedSock measures connect and sendto for sockets outside the group, in it without a service, and in it to a service.
func BenchmarkPrivilegedSock(b *testing.B) {
	n := newSockNode(b, nil)
	_, at := bound(b, unix.SOCK_DGRAM, netip.MustParseAddr("127.0.1.1"))
	n.backend(1, withProtocol(at, loadbalancer.UDP))
	service := address(service4, 53, loadbalancer.UDP)
	inside, to := rawSocket(b, unix.AF_INET, unix.SOCK_DGRAM), sockaddr(unix.AF_INET, at)
	if err := n.group.Leave(); err != nil {
		b.Fatal(err)
	}
	outside := rawSocket(b, unix.AF_INET, unix.SOCK_DGRAM)
	measure := func(name string, fd int, to unix.Sockaddr) {
		b.Run("connect/"+name, func(b *testing.B) {
			n.ns.Enter()
			for b.Loop() {
				if err := unix.Connect(fd, to); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("sendto/"+name, func(b *testing.B) {
			n.ns.Enter()
			for b.Loop() {
				if err := unix.Sendto(fd, nil, 0, to); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	measure("outside", outside, to)
	measure("no services", inside, to)
	n.service(service, bpf.Service{Id: 1}, 1)
	measure("another service", inside, to)
	measure("service", inside, sockaddr(unix.AF_INET, asWired(service)))
}
