package linkreaper

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/agentclient"
	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
)

// The link of an ADD that is slow between its link and its endpoint stays; the scans are counted from the creation of the link.
func TestCollect_LinkOfPendingADD_IsKept(t *testing.T) {
	t.Parallel()
	if until := (scans - 1) * DefaultConfig.Interval; until <= agentclient.RequestTimeout {
		t.Errorf("a link without an endpoint goes after %s, and an ADD may wait %s for its own", until, agentclient.RequestTimeout)
	}
	db := statedb.New()
	links, err1 := devices.NewTable(db)
	eps, err2 := endpoints.NewTable(db)
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	k := newFakeKernel(db, links)
	c := &collector{log: slog.New(slog.DiscardHandler), db: db, devices: links, endpoints: eps, kernel: k}
	look := func(n int) {
		for range n {
			if err := c.collect(); err != nil {
				t.Fatal(err)
			}
		}
	}
	left := func(when string, want int) {
		if members, _ := k.Members(podlink.Group); len(members) != want {
			t.Errorf("%s there are the links %+v, want %d", when, members, want)
		}
	}
	look(1)
	if err := k.set([]string{"3,lxc000000000001,veth,0x57414701", "4,lxc000000000002,veth,0x57414701"}); err != nil {
		t.Fatal(err)
	}
	look(scans - 1)
	left("while an ADD may be under way", 2)
	txn := db.WriteTxn(eps)
	_, _, err := eps.Insert(txn, &endpoints.Endpoint{ID: 1, ContainerID: "c1", IfName: "eth0", HostIfName: "lxc000000000001", HostIfIndex: 3})
	txn.Commit()
	if err != nil {
		t.Fatal(err)
	}
	if err := k.set([]string{"4,lxc000000000003,veth,0x57414701"}); err != nil { // a new link has its index
		t.Fatal(err)
	}
	look(scans - 1)
	left("with a new link under a former index", 2)
	look(1)
	left("at last", 1)
	look(scans)
	left("with its endpoint", 1)
}

// Orphans are determined by the first scan after the links are listed: links of a previous run whose state is lost are in use.
func TestCollect_LinksListedLate_AreKept(t *testing.T) {
	t.Parallel()
	db := statedb.New()
	links, err1 := devices.NewTable(db)
	eps, err2 := endpoints.NewTable(db)
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	txn := db.WriteTxn(links)
	listed := links.RegisterInitializer(txn, "netlink")
	txn.Commit()
	k := newFakeKernel(db, links)
	c := &collector{log: slog.New(slog.DiscardHandler), db: db, devices: links, endpoints: eps, kernel: k}
	if err := c.collect(); err != nil {
		t.Fatal(err)
	}
	if err := k.set([]string{"3,lxc000000000001,veth,0x57414701,up", "4,lxc000000000002,veth,0x57414701,up"}); err != nil {
		t.Fatal(err)
	}
	txn = db.WriteTxn(links)
	listed(txn)
	txn.Commit()
	for range scans {
		if err := c.collect(); !errors.Is(err, errOrphans) {
			t.Fatalf("got %v, want %v", err, errOrphans)
		}
	}
	if members, _ := k.Members(podlink.Group); len(members) != 2 {
		t.Errorf("of the links of two pods there are %+v", members)
	}
}
