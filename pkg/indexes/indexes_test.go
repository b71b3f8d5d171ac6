package indexes_test

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"github.com/waggle-net/waggle/pkg/indexes"
)

// level is a string type with a name, as the rows of some tables have.
type level string

type row struct {
	Name   string
	Level  level
	Ready  bool
	Link   int
	Port   uint16
	ID     uint32
	Seq    uint64
	Addr   netip.Addr
	Prefix netip.Prefix
}

func (r *row) Key() string { return r.Name + "/" + string(r.Level) }

var examples = []*row{
	{},
	{Name: "a", Level: "high", Ready: true, Link: 1, Port: 1, ID: 1, Seq: 1, Addr: netip.MustParseAddr("10.0.0.1"), Prefix: netip.MustParsePrefix("10.0.0.0/24")},
	{Name: "ab", Level: "low", Link: -1, Port: 0x1234, ID: 0x12345678, Seq: 0x123456789abcdef0, Addr: netip.MustParseAddr("fd00::1"), Prefix: netip.MustParsePrefix("fd00::1/64")},
}

// same compares an index with one written as a literal: its name, uniqueness, the keys of rows, the keys of queries and the keys that users type.
func same[K any](t *testing.T, got, want statedb.Index[*row, K], field func(*row) K, texts ...string) {
	t.Helper()
	if got.Name != want.Name || got.Unique != want.Unique {
		t.Errorf("got index %q, unique %v, want %q, unique %v", got.Name, got.Unique, want.Name, want.Unique)
	}
	for _, r := range examples {
		if g, w := keys(got.FromObject(r)), keys(want.FromObject(r)); !reflect.DeepEqual(g, w) {
			t.Errorf("index %q: row %v has the keys %v, want %v", want.Name, *r, g, w)
		}
		if g, w := got.FromKey(field(r)), want.FromKey(field(r)); !g.Equal(w) {
			t.Errorf("index %q: a query for %v has the key %v, want %v", want.Name, field(r), g, w)
		}
	}
	for _, text := range append(texts, "", "-1", "true", "wrong", "70000") {
		g, failed := got.FromString(text)
		w, err := want.FromString(text)
		if !g.Equal(w) || (failed == nil) != (err == nil) {
			t.Errorf("index %q: text %q is key %v (%v), want %v (%v)", want.Name, text, g, failed, w, err)
		}
	}
}

// keys lists the keys of a set.
func keys(set index.KeySet) (all []string) {
	set.Foreach(func(k index.Key) { all = append(all, string(k)) })
	return all
}

func TestUnique_EqualsTheLiteral(t *testing.T) {
	t.Parallel()
	name := func(r *row) string { return r.Name }
	same(t, indexes.Unique("name", indexes.String, name), statedb.Index[*row, string]{
		Name:       "name",
		FromObject: func(r *row) index.KeySet { return index.NewKeySet(index.String(r.Name)) },
		FromKey:    index.String,
		FromString: index.FromString,
		Unique:     true,
	}, name, "a", "ab")
	same(t, indexes.Unique("key", indexes.String, (*row).Key), statedb.Index[*row, string]{
		Name:       "key",
		FromObject: func(r *row) index.KeySet { return index.NewKeySet(index.String(r.Key())) },
		FromKey:    index.String,
		FromString: index.FromString,
		Unique:     true,
	}, (*row).Key, "a/high")
}

func TestShared_EqualsTheLiteral(t *testing.T) {
	t.Parallel()
	field := func(r *row) level { return r.Level }
	same(t, indexes.Shared("level", indexes.String, field), statedb.Index[*row, level]{
		Name:       "level",
		FromObject: func(r *row) index.KeySet { return index.NewKeySet(index.String(string(r.Level))) },
		FromKey:    func(l level) index.Key { return index.String(string(l)) },
		FromString: index.FromString,
	}, field, "high", "low")
}

func TestKinds_EqualTheLiteral(t *testing.T) {
	t.Parallel()
	ready := func(r *row) bool { return r.Ready }
	same(t, indexes.Shared("ready", indexes.Bool, ready), statedb.Index[*row, bool]{
		Name:       "ready",
		FromObject: func(r *row) index.KeySet { return index.NewKeySet(index.Bool(r.Ready)) },
		FromKey:    index.Bool,
		FromString: index.BoolString,
	}, ready, "false")
	link := func(r *row) int { return r.Link }
	same(t, indexes.Shared("link", indexes.Int, link), statedb.Index[*row, int]{
		Name:       "link",
		FromObject: func(r *row) index.KeySet { return index.NewKeySet(index.Int(r.Link)) },
		FromKey:    index.Int,
		FromString: index.IntString,
	}, link, "1", "2147483648")
	port := func(r *row) uint16 { return r.Port }
	same(t, indexes.Shared("port", indexes.Uint16, port), statedb.Index[*row, uint16]{
		Name:       "port",
		FromObject: func(r *row) index.KeySet { return index.NewKeySet(index.Uint16(r.Port)) },
		FromKey:    index.Uint16,
		FromString: index.Uint16String,
	}, port, "4660", "65536")
	id := func(r *row) uint32 { return r.ID }
	same(t, indexes.Unique("id", indexes.Uint32, id), statedb.Index[*row, uint32]{
		Name:       "id",
		FromObject: func(r *row) index.KeySet { return index.NewKeySet(index.Uint32(r.ID)) },
		FromKey:    index.Uint32,
		FromString: index.Uint32String,
		Unique:     true,
	}, id, "305419896", "4294967296")
	seq := func(r *row) uint64 { return r.Seq }
	same(t, indexes.Unique("seq", indexes.Uint64, seq), statedb.Index[*row, uint64]{
		Name:       "seq",
		FromObject: func(r *row) index.KeySet { return index.NewKeySet(index.Uint64(r.Seq)) },
		FromKey:    index.Uint64,
		FromString: index.Uint64String,
		Unique:     true,
	}, seq, "1311768467463790320", "18446744073709551616")
}

func TestKinds_EqualTheLiteral_Addresses(t *testing.T) {
	t.Parallel()
	addr := func(r *row) netip.Addr { return r.Addr }
	same(t, indexes.Unique("addr", indexes.Addr, addr), statedb.Index[*row, netip.Addr]{
		Name:       "addr",
		FromObject: func(r *row) index.KeySet { return index.NewKeySet(index.NetIPAddr(r.Addr)) },
		FromKey:    index.NetIPAddr,
		FromString: index.NetIPAddrString,
		Unique:     true,
	}, addr, "10.0.0.1", "fd00::1")
	prefix := func(r *row) netip.Prefix { return r.Prefix }
	same(t, indexes.Unique("prefix", indexes.Prefix, prefix), statedb.Index[*row, netip.Prefix]{
		Name:       "prefix",
		FromObject: func(r *row) index.KeySet { return index.NewKeySet(index.NetIPPrefix(r.Prefix)) },
		FromKey:    index.NetIPPrefix,
		FromString: index.NetIPPrefixString,
		Unique:     true,
	}, prefix, "10.0.0.0/24", "fd00::1/64", "10.0.0.1")
}

func TestOmitZero_EqualsTheLiteral(t *testing.T) {
	t.Parallel()
	name := func(r *row) string { return r.Name }
	same(t, indexes.OmitZero(indexes.Unique("name", indexes.String, name)), statedb.Index[*row, string]{
		Name: "name",
		FromObject: func(r *row) index.KeySet {
			if r.Name == "" {
				return index.KeySet{}
			}
			return index.NewKeySet(index.String(r.Name))
		},
		FromKey:    index.String,
		FromString: index.FromString,
		Unique:     true,
	}, name)
	ready := func(r *row) bool { return r.Ready }
	same(t, indexes.OmitZero(indexes.Shared("ready", indexes.Bool, ready)), statedb.Index[*row, bool]{
		Name: "ready",
		FromObject: func(r *row) index.KeySet {
			if !r.Ready {
				return index.KeySet{}
			}
			return index.NewKeySet(index.Bool(true))
		},
		FromKey:    index.Bool,
		FromString: index.BoolString,
	}, ready)
	port := func(r *row) uint16 { return r.Port }
	same(t, indexes.OmitZero(indexes.Shared("port", indexes.Uint16, port)), statedb.Index[*row, uint16]{
		Name: "port",
		FromObject: func(r *row) index.KeySet {
			if r.Port == 0 {
				return index.KeySet{}
			}
			return index.NewKeySet(index.Uint16(r.Port))
		},
		FromKey:    index.Uint16,
		FromString: index.Uint16String,
	}, port)
}

// A table accepts the indexes, lists its rows in the order of the keys, and finds rows by them.
func TestIndexes_OfATable(t *testing.T) {
	t.Parallel()
	db := statedb.New()
	byID := indexes.Unique("id", indexes.Uint32, func(r *row) uint32 { return r.ID })
	byLevel := indexes.OmitZero(indexes.Shared("level", indexes.String, func(r *row) level { return r.Level }))
	table, err := statedb.NewTableAny(db, "rows", func() []string { return nil }, func(*row) []string { return nil }, byID, byLevel)
	if err != nil {
		t.Fatal(err)
	}
	txn := db.WriteTxn(table)
	for _, r := range []*row{{ID: 256, Level: "low"}, {ID: 3}, {ID: 2, Level: "low"}, {ID: 1, Level: "lower"}} {
		if _, _, err := table.Insert(txn, r); err != nil {
			t.Fatal(err)
		}
	}
	txn.Commit()
	for what, check := range map[string]struct {
		rows func(yield func(*row, statedb.Revision) bool)
		want []uint32
	}{
		"all rows":           {table.All(db.ReadTxn()), []uint32{1, 2, 3, 256}},
		"rows of a level":    {table.List(db.ReadTxn(), byLevel.Query("low")), []uint32{2, 256}},
		"rows without level": {table.List(db.ReadTxn(), byLevel.Query("")), nil},
		"row with a number":  {table.List(db.ReadTxn(), byID.Query(256)), []uint32{256}},
	} {
		var got []uint32
		for r := range check.rows {
			got = append(got, r.ID)
		}
		if !slices.Equal(got, check.want) {
			t.Errorf("%s: got %v, want %v", what, got, check.want)
		}
	}
}

// named is a row of a table.
type named struct {
	Name string
	ID   uint32
}

func (*named) TableHeader() []string { return []string{"Name"} }
func (n *named) TableRow() []string  { return []string{n.Name} }

func TestDigest(t *testing.T) {
	t.Parallel()
	db := statedb.New()
	byName := indexes.Shared("name", indexes.Digest, func(r *named) string { return r.Name })
	table, err := statedb.NewTable(db, "rows", indexes.Unique("id", indexes.Uint32, func(r *named) uint32 { return r.ID }), byName)
	if err != nil {
		t.Fatal(err)
	}
	txn := db.WriteTxn(table)
	for i, name := range []string{"a", "", "ab", "a"} {
		if _, _, err := table.Insert(txn, &named{Name: name, ID: uint32(i)}); err != nil {
			t.Fatal(err)
		}
	}
	txn.Commit()
	for name, want := range map[string][]uint32{"a": {0, 3}, "ab": {2}, "": {1}, "b": nil} {
		var got []uint32
		for r := range table.List(db.ReadTxn(), byName.Query(name)) {
			got = append(got, r.ID)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: rows %v, want %v", name, got, want)
		}
	}
	if key, err := byName.FromString("ab"); err != nil || !key.Equal(byName.FromKey("ab")) {
		t.Errorf("a typed key is %v, %v", key, err)
	}
}
