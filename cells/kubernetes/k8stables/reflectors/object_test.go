package reflectors

import "testing"

// TestConvert_SharesEqualRow: while a list arrives, the rows from the copy on disk must not be in memory twice.
func TestConvert_SharesEqualRow(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	if err := s.Replace([]any{small(t, "same", "192.0.2.1", "1"), small(t, "changed", "192.0.2.2", "1")}, "10"); err != nil {
		t.Fatal(err)
	}
	c := converter{"one", s.set.DB, s.table}
	var objects []any
	for name, address := range map[string]string{"same": "192.0.2.1", "changed": "192.0.2.3", "new": "192.0.2.4"} {
		o, err := c.convert(node(name, address))
		if err != nil {
			t.Fatal(err)
		}
		old, found := s.table.Get(s.set.DB.ReadTxn(), name)
		if shared := o.row == old; found != (name != "new") || shared != (name == "same") {
			t.Errorf("%s: found=%v, shared=%v", name, found, shared)
		}
		objects = append(objects, o)
	}
	if err := s.Replace(objects, "20"); err != nil {
		t.Fatal(err)
	}
	for _, in := range objects {
		o := in.(*object)
		if row, _ := s.table.Get(s.set.DB.ReadTxn(), o.key()); row != o.row {
			t.Errorf("%s: the row of the list is not in the table", o.key())
		}
	}
}
