package tests

import (
	"net/netip"
	"testing"

	"github.com/waggle-net/waggle/bpf"
)

func TestSockPeer(t *testing.T) {
	t.Parallel()
	spec, err := bpf.Load(bpf.Sock)
	if err != nil {
		t.Fatal(err)
	}
	checkLayout(t, spec.Types, "sock_peer", bpf.SockPeer{})
	for _, pair := range [][2]string{{"10.96.0.1:80", "10.1.0.7:8080"}, {"[fd00::1]:80", "[fd00::7]:8080"}} {
		service, backend := netip.MustParseAddrPort(pair[0]), netip.MustParseAddrPort(pair[1])
		p := bpf.NewSockPeer(service, backend, 7)
		if p.ServiceAddr() != service || p.Target() != backend || p.BackendId != 7 {
			t.Errorf("%v: %+v", pair, p)
		}
	}
}
