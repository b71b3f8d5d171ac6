package basedevices

import (
	"context"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/pkg/datapath/rtnl"
	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/tables/desireddevices"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/testnet"
)

func newReal(t *testing.T) *netlinkKernel {
	t.Helper()
	k := &netlinkKernel{}
	testnet.New(t).Do(func() {
		var err error
		if k.handle, err = rtnl.Open(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(k.handle.Close)
	return k
}

// node returns a ready node with these router addresses.
func node(ipv4, ipv6 string) *localnode.LocalNode {
	return &localnode.LocalNode{Ready: true, IPv4: localnode.Family{Router: netip.MustParseAddr(ipv4)},
		IPv6: localnode.Family{Router: netip.MustParseAddr(ipv6)}}
}

func update(t *testing.T, o *ops, want []*desireddevices.Device) {
	t.Helper()
	for _, d := range want {
		if err := o.Update(context.Background(), nil, 0, d); err != nil {
			t.Fatal(err)
		}
	}
}

// check compares both ends of each pair with its row.
func check(t *testing.T, k *netlinkKernel, want []*desireddevices.Device) (indexes []int) {
	t.Helper()
	for _, d := range want {
		for _, name := range []string{d.Name, d.Peer} {
			have, found, err := k.Get(name)
			if err != nil || !found {
				t.Fatalf("%s: found %v, error %v", name, found, err)
			}
			if have.Up != d.Up || !have.NoARP || (d.MTU != 0 && have.MTU != d.MTU) || have.Type != "veth" {
				t.Errorf("%s is %+v, want %+v", name, have, d)
			}
			var addrs []netip.Prefix
			if name == d.Name {
				addrs = d.Addresses
			}
			slices.SortFunc(have.Addresses, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
			if !slices.Equal(have.Addresses, addrs) {
				t.Errorf("%s has addresses %v, want %v", name, have.Addresses, addrs)
			}
			indexes = append(indexes, have.Index)
		}
	}
	return indexes
}

func TestPrivilegedOps_Restart_ReusesLinks(t *testing.T) {
	t.Parallel()
	k := newReal(t)
	first := desiredDevices(node("10.1.0.1", "fd00::1"), 1400, true)
	update(t, newOps(k), first)
	indexes := check(t, k, first)

	unknown := desiredDevices(nil, 0, true) // the state right after a restart
	update(t, newOps(k), unknown)
	if again := check(t, k, first); !slices.Equal(again, indexes) {
		t.Fatalf("the links were made again: %v, then %v", indexes, again)
	}
	moved := desiredDevices(node("10.1.0.9", "fd00::1"), 1300, true)
	update(t, newOps(k), moved)
	if again := check(t, k, moved); !slices.Equal(again, indexes) {
		t.Fatalf("the links were made again: %v, then %v", indexes, again)
	}
}

func TestPrivilegedOps_DeletedPair_IsRecreated(t *testing.T) {
	t.Parallel()
	k := newReal(t)
	want := desiredDevices(node("10.1.0.1", "fd00::1"), 0, true)
	update(t, newOps(k), want)
	link, err := k.handle.LinkByName(podlink.NetDevice)
	if err == nil {
		err = k.handle.LinkDel(link)
	}
	if err != nil {
		t.Fatal(err)
	}
	update(t, newOps(k), want)
	check(t, k, want)
}

func TestPrivilegedOps_ForeignLinks_AreRejected(t *testing.T) {
	t.Parallel()
	k := newReal(t)
	if err := k.handle.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: podlink.HostDevice}, PeerName: "other"}); err != nil {
		t.Fatal(err)
	}
	before, _, _ := k.Get(podlink.HostDevice)
	if err := newOps(k).Update(context.Background(), nil, 0, desiredDevices(node("10.1.0.1", "fd00::1"), 1400, true)[0]); err == nil {
		t.Fatal("a veth with another peer was adopted")
	}
	after, _, _ := k.Get(podlink.HostDevice)
	if before.Up != after.Up || before.MTU != after.MTU || len(after.Addresses) != 0 {
		t.Fatalf("it was changed from %+v to %+v", before, after)
	}
}
