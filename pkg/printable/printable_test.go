package printable

import (
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestShort(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]string{
		"":                  "",
		"10.0.0.0/24":       "10.0.0.0/24",
		"fünf €":            "fünf €",
		"a\x1b[2Jb":         `a\x1b[2Jb`,
		"two\nlines":        `two\nlines`,
		"\u202eright":       `\u202eright`,
		"bad \xff":          `bad \xff`,
		"0123456789abcdefg": "0123456789abcdef...",
		"0123456789abcde€":  "0123456789abcde...", // no half of a rune
	} {
		if got := Short(s, 16); got != want {
			t.Errorf("%q is %s, want %s", s, got, want)
		}
	}
}

func FuzzShort(f *testing.F) {
	f.Add("a\x1b[31mb\x07\u202e\xff\ufffd€\n", 5)
	f.Fuzz(func(t *testing.T, s string, limit int) {
		limit = min(max(limit, 0), 1000)
		got := Short(s, limit)
		if !utf8.ValidString(got) || strings.ContainsFunc(got, func(r rune) bool { return !strconv.IsPrint(r) }) {
			t.Errorf("%q is not printable", got)
		}
		if len(got) > 10*limit+3 {
			t.Errorf("%d bytes of %d are %d", limit, len(s), len(got))
		}
	})
}

func TestList(t *testing.T) {
	t.Parallel()
	items := []string{"a", "b\x1b", "c", "d"}
	for most, want := range map[int]string{1: "a and 3 more", 2: `a, b\x1b and 2 more`, 4: `a, b\x1b, c, d`, 9: `a, b\x1b, c, d`} {
		if got := List(items, most); got != want {
			t.Errorf("%d: %q, want %q", most, got, want)
		}
	}
	if got := List(nil, 3); got != "" {
		t.Errorf("no items: %q", got)
	}
}
