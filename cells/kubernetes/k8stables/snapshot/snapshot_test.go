package snapshot

import (
	"bytes"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func rows(names ...string) iter.Seq2[string, any] {
	return func(yield func(string, any) bool) {
		for _, name := range names {
			if !yield("k8s-nodes", map[string]string{"name": name}) {
				return
			}
		}
	}
}

func encoded(t testing.TB, names ...string) []byte {
	t.Helper()
	file, err := Encode(Header{Node: "one", Written: time.Unix(1, 0).UTC(), Tables: []string{"k8s-nodes"}}, rows(names...))
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func TestDecode(t *testing.T) {
	t.Parallel()
	file := encoded(t, "a", "<b>")
	h, got, err := Decode(file, "one")
	if err != nil || h.Rows != 2 || len(got) != 2 || string(got[1].Row) != `{"name":"<b>"}` || got[1].Table != "k8s-nodes" {
		t.Fatalf("got %+v %s %v", h, got, err)
	}
	for name, c := range map[string]struct {
		file []byte
		node string
		want string
	}{
		"other node":     {file, "two", `of node "one"`},
		"other format":   {bytes.Replace(file, []byte(`"version":1`), []byte(`"version":2`), 1), "one", "format 2"},
		"empty":          {nil, "one", "does not begin"},
		"a state file":   {[]byte("{\"waggle\":\"endpoint\"}\n"), "one", "does not begin"},
		"other contents": {append(bytes.Clone(file), 'x'), "one", "checksum"},
		"other time":     {bytes.Replace(file, []byte("1970"), []byte("1971"), 1), "one", "checksum"},
	} {
		if _, got, err := Decode(c.file, c.node); err == nil || len(got) > 0 || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
}

func TestWrite_ReplacesFileWithPrivateMode(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lib", "k8s-snapshot")
	for _, text := range []string{"one", "two"} {
		if err := os.MkdirAll(filepath.Dir(path), dirMode); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path+".tmp", []byte("left by a crash"), 0o666); err != nil {
			t.Fatal(err)
		}
		if err := Write(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if got, err := Read(path); err != nil || string(got) != text {
			t.Errorf("got %q %v", got, err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode() != fileMode {
			t.Errorf("mode %v %v", info.Mode(), err)
		}
	}
	if err := os.Symlink(path, path+".link"); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(path + ".link"); err == nil {
		t.Error("a link is followed")
	}
}

// FuzzDecode truncates a file and flips bits. Decode must return all rows or none.
func FuzzDecode(f *testing.F) {
	whole := encoded(f, "a", "b", "c")
	f.Add(uint(0), byte(1), uint(0))
	f.Add(uint(3), byte(0x20), uint(0))
	f.Add(uint(len(whole)-1), byte(0xff), uint(1))
	f.Fuzz(func(t *testing.T, at uint, flip byte, cut uint) {
		file := bytes.Clone(whole)
		file[at%uint(len(file))] ^= flip
		file = file[:uint(len(file))-cut%uint(len(file))]
		_, got, err := Decode(file, "one")
		switch {
		case bytes.Equal(file, whole):
			if err != nil || len(got) != 3 {
				t.Errorf("%d rows, %v", len(got), err)
			}
		case err == nil || len(got) > 0:
			t.Errorf("%d rows of a damaged file, %v", len(got), err)
		}
	})
}

// FuzzDecodeAny decodes arbitrary bytes.
func FuzzDecodeAny(f *testing.F) {
	f.Add(encoded(f, "a"))
	f.Add([]byte("{\"waggle\":\"k8s-snapshot\",\"version\":1}\n"))
	f.Fuzz(func(t *testing.T, file []byte) {
		if _, got, err := Decode(file, "one"); err != nil && len(got) > 0 {
			t.Errorf("%d rows and %v", len(got), err)
		}
	})
}
