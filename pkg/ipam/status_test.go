package ipam

import (
	"net/netip"
	"testing"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/ipamaddresses"
)

func TestStatusLine(t *testing.T) {
	t.Parallel()
	db := statedb.New()
	addresses, err := ipamaddresses.NewTable(db)
	if err != nil {
		t.Fatal(err)
	}
	txn := db.WriteTxn(addresses)
	for addr, state := range map[string]ipamaddresses.State{
		"10.0.0.0": ipamaddresses.Excluded, "10.0.0.1": ipamaddresses.Reserved, "10.0.0.2": ipamaddresses.Claimed,
		"10.0.0.3": ipamaddresses.Allocated, "10.0.0.4": ipamaddresses.Quarantined, "10.0.1.1": ipamaddresses.Claimed,
		"fd00::1": ipamaddresses.Reserved,
	} {
		if _, _, err := addresses.Insert(txn, ipamaddresses.Address{Addr: netip.MustParseAddr(addr), State: state}); err != nil {
			t.Fatal(err)
		}
	}
	read := txn.Commit()
	usages := []Usage{Count(read, addresses, "ipv4", netip.MustParsePrefix("10.0.0.0/24")),
		Count(read, addresses, "ipv6", netip.MustParsePrefix("fd00::/112"))}
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
