package apiserver

import (
	"strings"
	"testing"
	"unicode"
)

func TestLastField(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{"a":1,"b":{"c":`:          "b.c",
		`{"a":{"b":1},"c":[1,{"d":`: "c.d",
		`{"a":{"b":1}`:              "a",
		`[1,2`:                      "",
		`{`:                         "",
		`}`:                         "",
	} {
		if got := lastField([]byte(body)); got != want {
			t.Errorf("%s: got %q, want %q", body, got, want)
		}
	}
}

// FuzzExplain passes arbitrary bodies: the message must be short and printable, and the function must not panic.
func FuzzExplain(f *testing.F) {
	f.Add([]byte(put))
	f.Add([]byte(`{"a":{"b":[{"c`))
	f.Add([]byte("{\"\x1b[2J\":"))
	f.Add([]byte(strings.Repeat("[", 100)))
	f.Fuzz(func(t *testing.T, data []byte) {
		if name := clip(lastField(data)); len(name) > 4*128+8 || strings.ContainsFunc(name, unicode.IsControl) {
			t.Fatalf("%q", name)
		}
	})
}
