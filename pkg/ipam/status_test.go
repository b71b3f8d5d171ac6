package ipam

import (
	"net/netip"
	"testing"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/ipamaddresses"
	"github.com/waggle-net/waggle/pkg/tables/nodecidrs"
)

func TestStatusLine(t *testing.T) {
	t.Parallel()
	db := statedb.New()
	addresses, err := ipamaddresses.NewTable(db)
	if err != nil {
		t.Fatal(err)
	}
	cidrs, err := nodecidrs.NewTable(db)
	if err != nil {
		t.Fatal(err)
	}
	txn := db.WriteTxn(addresses, cidrs)
	for addr, state := range map[string]ipamaddresses.State{
		"10.0.0.0": ipamaddresses.Excluded, "10.0.0.1": ipamaddresses.Reserved, "10.0.0.2": ipamaddresses.Claimed,
		"10.0.0.3": ipamaddresses.Allocated, "10.0.0.4": ipamaddresses.Quarantined, "10.0.1.1": ipamaddresses.Claimed,
		"fd00::1": ipamaddresses.Reserved,
	} {
		if _, _, err := addresses.Insert(txn, ipamaddresses.Address{Addr: netip.MustParseAddr(addr), State: state}); err != nil {
			t.Fatal(err)
		}
	}
	for family, prefix := range map[string]string{"ipv4": "10.0.0.0/24", "ipv6": "fd00::/112"} {
		row := nodecidrs.Candidate{Family: family, Source: nodecidrs.Flag, Prefix: netip.MustParsePrefix(prefix), Chosen: true}
		if _, _, err := cidrs.Insert(txn, row); err != nil {
			t.Fatal(err)
		}
	}
	usages := Usages(txn.Commit(), cidrs, addresses)
	want := "IPv4: 3/254 allocated from 10.0.0.0/24, IPv6: 1/65534 allocated from fd00::/112"
	if got := StatusLine(usages); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if u := usages[0]; u.Quarantined != 1 || u.Excluded != 1 || u.Outside != 1 {
		t.Errorf("got %+v", u)
	}
}

func TestUsable(t *testing.T) {
	t.Parallel()
	for prefix, want := range map[string]string{
		"10.0.0.1/32": "1", "10.0.0.0/31": "2", "10.0.0.0/30": "2", "fd00::/64": "18446744073709551614",
		"fd00::/56": "4722366482869645213694",
	} {
		if got := usable(netip.MustParsePrefix(prefix)).String(); got != want {
			t.Errorf("%s has %s usable addresses, want %s", prefix, got, want)
		}
	}
}
