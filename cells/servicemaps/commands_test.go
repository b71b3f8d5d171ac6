package servicemaps

import (
	"net/netip"
	"testing"

	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/servicemaps"
)

func TestBalanced_Text(t *testing.T) {
	t.Parallel()
	at := func(text string, port uint16) loadbalancer.Address {
		return loadbalancer.Address{Addr: netip.MustParseAddr(text), Port: port, Protocol: loadbalancer.TCP}
	}
	b := balanced{
		Frontends: []named{
			{servicemaps.Frontend{Address: at("10.96.0.1", 80), ID: 1, Backends: []uint32{4, 5}}, "shop/web"},
			{servicemaps.Frontend{Address: at("fd00::1", 80), Scope: 1, ID: 2, Flags: []string{"outside"}}, ""},
		},
		Backends: []servicemaps.Backend{{ID: 4, Address: at("10.0.1.7", 8080), Local: true}},
	}
	for backends, want := range map[bool]string{
		false: "ID  FRONTEND          SCOPE     SERVICE   BACKENDS                       FLAGS\n" +
			"1   10.96.0.1:80/TCP  external  shop/web  10.0.1.7:8080/TCP,5 (missing)  -\n" +
			"2   [fd00::1]:80/TCP  internal  -         -                              outside\n",
		true: "ID  BACKEND            LOCAL\n4   10.0.1.7:8080/TCP  true\n",
	} {
		if got := b.text(backends); got != want {
			t.Errorf("backends alone: %v\n%s\nwant\n%s", backends, got, want)
		}
	}
}
