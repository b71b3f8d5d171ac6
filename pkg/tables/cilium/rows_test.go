package cilium

import (
	"reflect"
	"testing"
)

// TestEqual_ComparesEveryField changes one field after the other: a field that Equal forgets would never reach the tables.
func TestEqual_ComparesEveryField(t *testing.T) {
	t.Parallel()
	everyField(t, Node{}, func(a, b *Node) bool { return a.Equal(b) })
	everyField(t, EndpointFields{}, func(a, b *EndpointFields) bool { return NewEndpoint(*a).Equal(NewEndpoint(*b)) })
	everyField(t, Identity{}, func(a, b *Identity) bool { return a.Equal(b) })
	everyField(t, EndpointSlice{}, func(a, b *EndpointSlice) bool { return a.Equal(b) })
	everyField(t, CIDRGroup{}, func(a, b *CIDRGroup) bool { return a.Equal(b) })
	everyField(t, Policy{}, func(a, b *Policy) bool { return a.Equal(b) })
}

func everyField[T any](t *testing.T, zero T, equal func(a, b *T) bool) {
	t.Helper()
	if other := zero; !equal(&zero, &other) {
		t.Errorf("%T is not equal to itself", zero)
	}
	for i := range reflect.TypeFor[T]().NumField() {
		changed := zero
		field := reflect.TypeFor[T]().Field(i)
		v := reflect.ValueOf(&changed).Elem().Field(i)
		switch v.Kind() {
		case reflect.String:
			v.SetString("x")
		case reflect.Uint8, reflect.Uint32, reflect.Uint64:
			v.SetUint(1)
		case reflect.Int64:
			v.SetInt(1)
		case reflect.Map:
			v.Set(reflect.MakeMap(v.Type()))
			v.SetMapIndex(reflect.ValueOf("x"), reflect.ValueOf("y"))
		case reflect.Slice:
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		case reflect.Struct: // an address
			continue
		default:
			t.Fatalf("field %s needs a case here", field.Name)
		}
		if equal(&zero, &changed) || equal(&changed, &zero) {
			t.Errorf("Equal of %T does not see %s", zero, field.Name)
		}
	}
}
