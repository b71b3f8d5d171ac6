package k8s

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/cilium/statedb"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.yaml.in/yaml/v3"

	"github.com/waggle-net/waggle/pkg/celltest"
)

// TestEqual_ComparesEveryField changes one field after the other: a field that Equal forgets would never reach the tables.
func TestEqual_ComparesEveryField(t *testing.T) {
	t.Parallel()
	everyField(t, Node{}, func(a, b *Node) bool { return a.Equal(b) })
	everyField(t, Pod{}, func(a, b *Pod) bool { return a.Equal(b) })
	everyField(t, Namespace{}, func(a, b *Namespace) bool { return a.Equal(b) })
	everyField(t, Service{}, func(a, b *Service) bool { return a.Equal(b) })
	everyField(t, NetworkPolicy{}, func(a, b *NetworkPolicy) bool { return a.Equal(b) })
	everyField(t, EndpointSlice{}, func(a, b *EndpointSlice) bool { return a.Equal(b) })
	everyField(t, SliceEndpoint{}, func(a, b *SliceEndpoint) bool { return a.equal(*b) })
}

func everyField[T any](t *testing.T, zero T, equal func(a, b *T) bool) {
	t.Helper()
	if other := zero; !equal(&zero, &other) {
		t.Errorf("%T is not equal to itself", zero)
	}
	for i := range reflect.TypeFor[T]().NumField() {
		changed := zero
		fill(reflect.ValueOf(&changed).Elem().Field(i))
		if equal(&zero, &changed) || equal(&changed, &zero) {
			t.Errorf("Equal of %T does not see %s", zero, reflect.TypeFor[T]().Field(i).Name)
		}
	}
}

// fill sets a field to a value other than its zero value.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Uint16:
		v.SetUint(1)
	case reflect.Int64:
		v.SetInt(1)
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("x"), reflect.ValueOf("y"))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case reflect.Struct:
		fill(v.Field(0))
	default:
		panic("a field of kind " + v.Kind().String() + " needs a case here")
	}
}

// FuzzRows checks that rows survive JSON and YAML, the forms that shells and scripts use, and that free text from objects cannot send commands to a
// terminal.
func FuzzRows(f *testing.F) {
	f.Add("a", "b", "10.0.0.0/24", uint16(80))
	f.Add("a\x1b[2J", "\n", "fd00::1", uint16(0))
	f.Fuzz(func(t *testing.T, name, text, cidr string, port uint16) {
		name, text, cidr = strings.ToValidUTF8(name, ""), strings.ToValidUTF8(text, ""), strings.ToValidUTF8(cidr, "")
		if !celltest.YAMLRoundTrips(name, text, cidr) {
			return // the YAML library loses part of such a text
		}
		prefix, _ := netip.ParsePrefix(cidr)
		survives(t, Node{Name: name, UID: text, PodCIDR: cidr, PodCIDRs: []string{cidr, text}})
		survives(t, Service{Name: name, UID: text, Type: text, SourceRanges: []netip.Prefix{prefix},
			Ports: []ServicePort{{Name: text, Port: port}}})
		survives(t, NetworkPolicy{Name: name, Ingress: []PolicyRule{{Peers: []Peer{{Pods: &Selector{}, IPBlock: prefix}}}}})
		row := (&Node{Name: "one", UID: text, PodCIDR: cidr, PodCIDRs: []string{text}}).TableRow()
		if strings.ContainsAny(strings.Join(row, ""), "\x1b\n\r\x00\u009b") {
			t.Errorf("%q is not fit to be shown", row)
		}
	})
}

func survives[T any](t *testing.T, row T) {
	t.Helper()
	same := func(a, b T) bool { // YAML does not distinguish an empty list from none
		return cmp.Equal(a, b, cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}))
	}
	text, err := json.Marshal(row)
	if err != nil {
		t.Fatal(err)
	}
	var back T
	if err := json.Unmarshal(text, &back); err != nil || !same(row, back) {
		t.Errorf("JSON %s gives %+v (%v), want %+v", text, back, err, row)
	}
	if text, err = yaml.Marshal(row); err != nil {
		t.Fatal(err)
	}
	var again T
	if err := yaml.Unmarshal(text, &again); err != nil || !same(row, again) {
		t.Errorf("YAML %s gives %+v (%v), want %+v", text, again, err, row)
	}
}

func TestTables_FindByName(t *testing.T) {
	t.Parallel()
	db := statedb.New()
	table, err := NewServiceTable(db)
	if err != nil {
		t.Fatal(err)
	}
	txn := db.WriteTxn(table)
	if _, _, err := table.Insert(txn, &Service{Namespace: "a", Name: "b"}); err != nil {
		t.Fatal(err)
	}
	txn.Commit()
	if _, _, ok := table.Get(db.ReadTxn(), ServiceByName("a/b")); !ok {
		t.Error("a/b is not found")
	}
	if _, _, ok := table.Get(db.ReadTxn(), ServiceByName("a")); ok {
		t.Error("a is found")
	}
}
