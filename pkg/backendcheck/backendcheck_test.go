package backendcheck

import (
	"testing"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
	"github.com/waggle-net/waggle/pkg/tables/services"
)

// A service has the ports "a" and "b"; port "a" has two addresses. A client reached a backend by the first of these.
func TestDatagrams(t *testing.T) {
	t.Parallel()
	const id = 11
	var addresses []loadbalancer.Address
	for _, text := range []string{"10.96.0.1:53/UDP", "192.0.2.5:30053/UDP", "10.96.0.1:54/UDP"} {
		a, err := loadbalancer.ParseAddress(text)
		if err != nil {
			t.Fatal(err)
		}
		addresses = append(addresses, a)
	}
	mine := []string{"shop/dns"}
	for name, tc := range map[string]struct {
		named    []uint32 // listed by the frontend
		internal []uint32
		sibling  []uint32 // listed by the other frontend of the port
		other    []uint32 // listed by the other port
		of       string   // owner of the other port's address; shop/dns when empty
		services []string
		state    backends.State
		want     bool
	}{
		"a backend of the port":                      {named: []uint32{7, id}, services: mine, want: true},
		"for clients of this node":                   {internal: []uint32{7, id, 12}, services: mine, want: true},
		"for backends of both ports":                 {named: []uint32{id}, other: []uint32{id}, services: mine, want: true},
		"the port is the other's now":                {named: []uint32{12}, other: []uint32{id}, services: mine},
		"the port has no backend":                    {other: []uint32{7, id}, services: mine},
		"it terminates, without new clients":         {named: []uint32{12}, other: []uint32{12}, services: mine, state: backends.Terminating, want: true},
		"it is on another node, of only one address": {sibling: []uint32{id}, other: []uint32{id}, services: mine, want: true},
		"the other address is another service's":     {other: []uint32{id}, of: "shop/names", services: []string{"shop/dns", "shop/names"}, want: true},
		"it is not ready":                            {named: []uint32{id}, services: mine, state: backends.NotReady},
		"of another service":                         {named: []uint32{id}, services: []string{"shop/names"}},
	} {
		db := statedb.New()
		s, err1 := services.NewTable(db)
		f, err2 := frontends.NewTable(db)
		b, err3 := backends.NewTable(db)
		if err1 != nil || err2 != nil || err3 != nil {
			t.Fatal(err1, err2, err3)
		}
		of := tc.of
		if of == "" {
			of = "shop/dns"
		}
		first := &frontends.Frontend{Address: addresses[0], ID: 1, Service: "shop/dns", PortName: "a", Backends: tc.named, Internal: tc.internal}
		backend := &backends.Backend{ID: id, State: tc.state, Services: tc.services}
		write := db.WriteTxn(s, f, b)
		_, _, err1 = s.Insert(write, &services.Service{Name: "shop/dns", Claims: addresses})
		for _, row := range []*frontends.Frontend{first,
			{Address: addresses[1], ID: 2, Service: "shop/dns", PortName: "a", Backends: tc.sibling},
			{Address: addresses[2], ID: 3, Service: of, PortName: "b", Backends: tc.other}} {
			if _, _, err := f.Insert(write, row); err != nil {
				t.Fatal(err)
			}
		}
		txn := write.Commit()
		if err1 != nil {
			t.Fatal(err1)
		}
		view := Tables{Services: s, Frontends: f, Backends: b}.At(txn)
		if got := view.Datagrams(first, backend); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
		if view.Datagrams(nil, backend) || view.Datagrams(first, nil) {
			t.Errorf("%s: who is gone answers", name)
		}
	}
}
