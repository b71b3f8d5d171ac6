package routereconciler

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/datapath/rtnl"
	"github.com/waggle-net/waggle/pkg/tables/desiredroutes"
	"github.com/waggle-net/waggle/pkg/testnet"
)

// newReal creates a namespace with a link "host" that has addresses, and the real kernel inside.
func newReal(t *testing.T) *netlinkKernel {
	t.Helper()
	k := &netlinkKernel{}
	testnet.New(t).Do(func() {
		var err error
		if k.handle, err = rtnl.Open(); err != nil {
			t.Error(err)
			return
		}
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "host"}, PeerName: "peer"}
		for _, step := range []func() error{
			func() error { return k.handle.LinkAdd(veth) },
			func() error { return k.handle.LinkSetUp(veth) },
			func() error { return k.handle.AddrAdd(veth, mustAddr("10.1.0.1/32")) },
			func() error { return k.handle.AddrAdd(veth, mustAddr("10.1.0.2/32")) },
			func() error { return k.handle.AddrAdd(veth, mustAddr("fd00::1/128")) },
		} {
			if err := step(); err != nil {
				t.Error(err)
			}
		}
	})
	t.Cleanup(k.handle.Close)
	return k
}

func mustAddr(s string) *netlink.Addr {
	a, err := netlink.ParseAddr(s)
	if err != nil {
		panic(err)
	}
	a.Flags = unix.IFA_F_NODAD
	return a
}

// routes returns one route of each family, as base-devices contributes them.
func routes() []*desiredroutes.Route {
	return []*desiredroutes.Route{
		{Table: 254, Dst: netip.MustParsePrefix("10.1.0.0/24"), Device: "host", Src: netip.MustParseAddr("10.1.0.1"), Scope: 253},
		{Table: 254, Dst: netip.MustParsePrefix("fd00::/64"), Device: "host", Src: netip.MustParseAddr("fd00::1"), MTU: 1400},
	}
}

// find returns the route of a row from the kernel.
func find(t *testing.T, k *netlinkKernel, row *desiredroutes.Route) (route, bool) {
	t.Helper()
	all, err := k.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range all {
		if r.Table == row.Table && r.Dst == row.Dst {
			return r, true
		}
	}
	return route{}, false
}

func TestPrivilegedOps_RouteMatchesRow(t *testing.T) {
	t.Parallel()
	k := newReal(t)
	o := newOps(k)
	link, err := k.LinkIndex("host")
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range routes() {
		for range 2 { // the second call finds the route
			if err := o.Update(context.Background(), nil, 0, row); err != nil {
				t.Fatal(err)
			}
			if have, _ := find(t, k, row); have != wanted(row, link) {
				t.Fatalf("the kernel has %+v, want %+v", have, wanted(row, link))
			}
		}
		row.MTU = 1300
		if err := o.Update(context.Background(), nil, 0, row); err != nil {
			t.Fatal(err)
		}
		if have, _ := find(t, k, row); have != wanted(row, link) {
			t.Fatalf("after a change the kernel has %+v, want %+v", have, wanted(row, link))
		}
		for range 2 { // the second call finds no route
			if err := o.Delete(context.Background(), nil, 0, row); err != nil {
				t.Fatal(err)
			}
			if have, found := find(t, k, row); found {
				t.Fatalf("still there: %+v", have)
			}
		}
	}
}

func TestPrivilegedOps_ForeignRouteStays(t *testing.T) {
	t.Parallel()
	k := newReal(t)
	o := newOps(k)
	link, _ := k.LinkIndex("host")
	for _, row := range routes() {
		foreign := wanted(row, link)
		foreign.Protocol = unix.RTPROT_STATIC
		if err := k.Create(foreign); err != nil {
			t.Fatal(err)
		}
		if err := o.Update(context.Background(), nil, 0, row); err == nil {
			t.Fatal("a foreign route was taken over")
		}
		if err := errors.Join(o.Delete(context.Background(), nil, 0, row), o.prune(func(func(*desiredroutes.Route, uint64) bool) {})); err != nil {
			t.Fatal(err)
		}
		if have, _ := find(t, k, row); have != foreign {
			t.Fatalf("the foreign route is now %+v, was %+v", have, foreign)
		}
	}
}

func TestPrivilegedOps_PruneRemovesOnlyOwnRoutes(t *testing.T) {
	t.Parallel()
	k := newReal(t)
	o := newOps(k)
	keep := routes()[1]
	for _, row := range routes() {
		if err := o.Update(context.Background(), nil, 0, row); err != nil {
			t.Fatal(err)
		}
	}
	before, _ := k.List()
	if err := o.prune(func(yield func(*desiredroutes.Route, uint64) bool) { yield(keep, 0) }); err != nil {
		t.Fatal(err)
	}
	after, _ := k.List()
	if _, found := find(t, k, keep); !found || len(after) != len(before)-1 {
		t.Fatalf("%d routes before, %d after, wanted one there: %v", len(before), len(after), found)
	}
	gone := keep.Clone()
	gone.Device = "nothing"
	if err := o.Update(context.Background(), nil, 0, gone); !errors.Is(err, errNoDevice) {
		t.Fatalf("a missing device gives %v", err)
	}
}
