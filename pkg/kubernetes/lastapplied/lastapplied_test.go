package lastapplied

import "testing"

func TestValues(t *testing.T) {
	t.Parallel()
	v := Values{"b": "2", "a": "1"}
	text := v.String()
	if text != `{"a":"1","b":"2"}` {
		t.Errorf("written as %s", text)
	}
	read := Of(map[string]string{Annotation: text})
	if !read.Ours("a", "1") || read.Ours("a", "2") || read.Ours("c", "") {
		t.Errorf("read as %v", read)
	}
	for _, bad := range []string{"", "null", "[1]", `{"a":1}`, "{"} {
		if v := Of(map[string]string{Annotation: bad}); v.Ours("a", "1") || v.Ours("a", "") || v.String() != "" {
			t.Errorf("%q is read as %v", bad, v)
		}
	}
}

func FuzzOf(f *testing.F) {
	f.Add(`{"a":"1"}`, "a", "1")
	f.Fuzz(func(t *testing.T, text, key, value string) {
		v := Of(map[string]string{Annotation: text})
		again := Of(map[string]string{Annotation: v.String()})
		if v.Ours(key, value) != again.Ours(key, value) {
			t.Errorf("%q: %v is not %v", text, v, again)
		}
	})
}
