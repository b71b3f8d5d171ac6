package ipcache

import (
	"net/netip"
	"testing"

	"github.com/cilium/statedb"
)

// TestKey_KeepsOrderAndPrefix checks that keys have the order of the addresses, with IPv4 at ::ffff:0:0, that a key contains its prefix, and that all queries find
// the row.
func TestKey_KeepsOrderAndPrefix(t *testing.T) {
	t.Parallel()
	db := statedb.New()
	table, err := NewTable(db)
	if err != nil {
		t.Fatal(err)
	}
	prefixes := []string{"::/0", "::/128", "::1/128", "::fffe:ffff:ffff/128", "0.0.0.0/0", "0.0.0.0/32", "10.0.0.0/8", "10.0.0.0/24", "10.0.0.0/32", "10.0.0.9/32",
		"10.0.1.0/24", "255.255.255.255/32", "::1:0:0:0/128", "2001:db8::/64", "2001:db8::/128", "fd00::7/128", "ffff::/16"}
	txn := db.WriteTxn(table)
	defer txn.Abort()
	for i := range prefixes {
		p := netip.MustParsePrefix(prefixes[len(prefixes)-1-i])
		if _, _, err := table.Insert(txn, NewEntry(Claim{Prefix: p}, "")); err != nil {
			t.Fatal(err)
		}
	}
	i := 0
	for e := range table.All(txn) {
		if e.Prefix().String() != prefixes[i] {
			t.Errorf("row %d is %s, want %s", i, e.Prefix(), prefixes[i])
		}
		i++
	}
	if i != len(prefixes) {
		t.Errorf("%d rows, want %d", i, len(prefixes))
	}
	for _, text := range prefixes {
		p := netip.MustParsePrefix(text)
		typed, err := prefixIndex.FromString(text)
		if err != nil {
			t.Fatal(err)
		}
		for what, query := range map[string]statedb.Query[*Entry]{"prefix": ByPrefix(p), "key": ByKey(KeyOf(p)), "text": prefixIndex.QueryFromKey(typed)} {
			if e, _, found := table.Get(txn, query); !found || e.Prefix() != p || e.Key() != KeyOf(p) {
				t.Errorf("%s: the query by %s returns %+v, %t", text, what, e, found)
			}
		}
	}
	if masked, want := KeyOf(netip.MustParsePrefix("10.0.0.9/24")), KeyOf(netip.MustParsePrefix("10.0.0.0/24")); masked != want {
		t.Errorf("the key of a prefix with bits of a host is %x, want %x", masked, want)
	}
	if _, err := prefixIndex.FromString("10.0.0.300/32"); err == nil {
		t.Error("a text that is not a prefix has a key")
	}
	if _, _, found := table.Get(txn, ByPrefix(netip.Prefix{})); found {
		t.Error("the invalid prefix has a row")
	}
}
