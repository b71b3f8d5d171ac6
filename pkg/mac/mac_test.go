package mac

import (
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"": "", "02:00:00:00:00:0a": "02:00:00:00:00:0a", "02-00-00-00-00-0A": "02:00:00:00:00:0a",
		"00:00:00:00:00:00": ""} {
		if got, err := Parse(in); err != nil || got.String() != want {
			t.Errorf("%q: %q, %v; want %q", in, got, err, want)
		}
	}
	for _, bad := range []string{"x", "02:00:00:00:00", "02:00:00:00:00:00:00:00", "02:00:00:00:00:0g", strings.Repeat("0", 10_000)} {
		if got, err := Parse(bad); err == nil {
			t.Errorf("%.40q is accepted as %q", bad, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("02:00:00:00:00:0a")
	f.Add("0200.0000.000a")
	f.Fuzz(func(t *testing.T, s string) {
		a, err := Parse(s)
		if err != nil {
			return
		}
		var again Addr
		if text, err := a.MarshalText(); err != nil || again.UnmarshalText(text) != nil || again != a {
			t.Errorf("%q is %q, which does not survive as text", s, a)
		}
	})
}
