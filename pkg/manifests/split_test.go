package manifests

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSplit(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, text string
		want       []string // "line: data"
	}{
		{"nothing", "", nil},
		{"only markers", "---\n---\n...\n", nil},
		{"one without a marker", "a: 1\nb: 2\n", []string{"1: a: 1\nb: 2\n"}},
		{"no newline at the end", "a: 1\n---\nb: 2", []string{"1: a: 1\n", "3: b: 2"}},
		{"carriage returns", "a: 1\r\n---\r\nb: 2\r\n", []string{"1: a: 1\r\n", "3: b: 2\r\n"}},
		{"a document on the line of its marker", "--- {a: 1}\n--- {b: 2}\n", []string{"1:  {a: 1}\n", "2:  {b: 2}\n"}},
		{"a comment behind the marker", "--- # first\na: 1\n", []string{"2: a: 1\n"}},
		{"an end marker", "a: 1\n...\nb: 2\n", []string{"1: a: 1\n", "3: b: 2\n"}},
		{"more dashes are text", "----\na---: 1\n", []string{"1: ----\na---: 1\n"}},
		{"indented dashes are text", "a: |\n  ---\n  b\n", []string{"1: a: |\n  ---\n  b\n"}},
	} {
		var got []string
		for _, d := range split([]byte(test.text)) {
			got = append(got, fmt.Sprintf("%d: %s", d.line, d.data))
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s: %s", test.name, diff)
		}
	}
}

// FuzzSplit checks that only markers are removed and that line numbers are right.
func FuzzSplit(f *testing.F) {
	f.Add([]byte("a\n---\nb\n--- c\n...\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		at := 0
		for _, d := range split(data) {
			i := strings.Index(string(data[at:]), string(d.data))
			if i < 0 {
				t.Fatalf("%q is not a part of the file", d.data)
			}
			if line := lineAt(data, int64(at+i)); line > d.line {
				t.Errorf("%q begins on line %d, not %d", d.data, line, d.line)
			}
			at += i + len(d.data)
		}
	})
}
