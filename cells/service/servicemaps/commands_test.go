package servicemaps

import (
	"net/netip"
	"testing"

	"github.com/waggle-net/waggle/pkg/datapath/servicemap"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
)

func TestBalanced_Text(t *testing.T) {
	t.Parallel()
	at := func(text string, port uint16) loadbalancer.Address {
		return loadbalancer.Address{Addr: netip.MustParseAddr(text), Port: port, Protocol: loadbalancer.TCP}
	}
	b := newBalanced([]servicemap.Frontend{
		{Address: at("10.96.0.1", 80), ID: 7, Backends: []uint32{4, 5}, Ranges: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}},
		{Address: at("10.96.0.1", 80), Scope: 1, ID: 7},
		{Address: at("fd00::1", 80), Scope: 1, ID: 2, Flags: []string{"outside"}},
	}, []servicemap.Backend{{ID: 4, Address: at("10.0.1.7", 8080), Local: true}}, func(a loadbalancer.Address) string {
		if a.Addr.Is4() {
			return "shop/web"
		}
		return ""
	})
	for list, want := range map[string]string{
		"": "ID  FRONTEND          SCOPE     SERVICE   BACKENDS                       FLAGS\n" +
			"7   10.96.0.1:80/TCP  external  shop/web  10.0.1.7:8080/TCP,5 (missing)  -\n" +
			"7   10.96.0.1:80/TCP  internal  shop/web  -                              -\n" +
			"2   [fd00::1]:80/TCP  internal  -         -                              outside\n",
		"frontends": "ID  FRONTEND          SCOPE     SERVICE   COUNT  FLAGS\n" +
			"7   10.96.0.1:80/TCP  external  shop/web  2      -\n" +
			"7   10.96.0.1:80/TCP  internal  shop/web  0      -\n" +
			"2   [fd00::1]:80/TCP  internal  -         0      outside\n",
		"backends":      "ID  BACKEND            LOCAL\n4   10.0.1.7:8080/TCP  true\n",
		"revnat":        "ID  FRONTEND\n2   [fd00::1]:80/TCP\n7   10.96.0.1:80/TCP\n",
		"source-ranges": "ID  FRONTEND          SOURCE RANGE  POLICY\n7   10.96.0.1:80/TCP  192.0.2.0/24  allow\n",
	} {
		if got := b.text(list); got != want {
			t.Errorf("%q:\n%s\nwant\n%s", list, got, want)
		}
	}
}
