package statefile

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

type document struct {
	Name string `json:"name"`
	N    int    `json:"n"`
}

func newStore(t *testing.T) *Store {
	t.Helper()
	s := New(filepath.Join(t.TempDir(), "things"), "thing")
	require.NoError(t, s.Open())
	return s
}

func one(t *testing.T, s *Store) File {
	t.Helper()
	files, err := s.ReadAll()
	require.NoError(t, err)
	require.Len(t, files, 1)
	return files[0]
}

func TestWrite_ReadsBackWithModeAndWithoutLeftovers(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	require.NoError(t, s.Write("1.json", document{"<a&b>\u2028", 1}))
	require.NoError(t, s.Write("1.json", document{"<a&b>\u2028", 2}))
	f := one(t, s)
	require.NoError(t, f.Err)
	require.JSONEq(t, `{"name":"<a&b>\u2028","n":2}`, string(f.Document))
	info, err := os.Stat(filepath.Join(s.Dir(), "1.json"))
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), info.Mode())
	entries, err := os.ReadDir(s.Dir())
	require.NoError(t, err)
	require.Len(t, entries, 1)
	require.NoError(t, s.Remove("1.json"))
	require.NoError(t, s.Remove("1.json"), "removing what is gone is no error")
}

// A reader that races with writers reads one of their documents completely.
func TestWrite_IsAtomicForReaders(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	require.NoError(t, s.Write("1.json", document{"x", 0}))
	var writers sync.WaitGroup
	for w := range 4 {
		writers.Go(func() {
			for i := range 100 {
				if err := s.Write("1.json", document{strings.Repeat("x", 100*w), i}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { writers.Wait(); close(done) }()
	for reading := true; reading; {
		select {
		case <-done:
			reading = false
		default:
		}
		require.NoError(t, s.read("1.json").Err)
	}
}

func TestDecode_TruncatedAtEachByteIsCorrupt(t *testing.T) {
	t.Parallel()
	whole, err := Encode("thing", []byte(`{"name":"a","n":1}`))
	require.NoError(t, err)
	for n := range len(whole) {
		_, err := Decode("thing", whole[:n])
		require.ErrorIs(t, err, ErrCorrupt, "cut at byte %d", n)
	}
	_, err = Decode("thing", whole)
	require.NoError(t, err)
}

func TestDecode_FlippedByte_IsDetected(t *testing.T) {
	t.Parallel()
	whole, err := Encode("thing", []byte(`{"name":"a","n":1}`))
	require.NoError(t, err)
	for i := range whole {
		for _, flip := range []byte{0x01, 0x20, 0x80} {
			bad := bytes.Clone(whole)
			bad[i] ^= flip
			_, err := Decode("thing", bad)
			require.Error(t, err, "byte %d flipped with %#x: %q", i, flip, bad)
		}
	}
}

func TestDecode_DistinguishesForeignFromCorrupt(t *testing.T) {
	t.Parallel()
	newer := `{"waggle":"thing","version":2,"checksum":"","data":{}}`
	for name, c := range map[string]struct {
		file string
		want error
	}{
		"other JSON":    {`{"ID":7,"IPv4":"10.0.0.1"}`, ErrForeign},
		"other kind":    {`{"waggle":"other","version":1,"checksum":"","data":{}}`, ErrForeign},
		"text":          {"hello", ErrForeign},
		"binary":        {"\x7fELF\x00", ErrForeign},
		"empty":         {"", ErrCorrupt},
		"newer version": {newer, ErrCorrupt},
		"no checksum":   {strings.Replace(newer, "2", "1", 1), ErrCorrupt},
	} {
		_, err := Decode("thing", []byte(c.file))
		require.ErrorIs(t, err, c.want, name)
	}
}

func TestReadAll_ReportsForeignEntries(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	require.NoError(t, s.Write("1.json", document{"a", 1}))
	require.NoError(t, os.Mkdir(filepath.Join(s.Dir(), "2.json"), 0o700))
	require.NoError(t, os.Symlink("1.json", filepath.Join(s.Dir(), "3.json")))
	require.NoError(t, syscall.Mkfifo(filepath.Join(s.Dir(), "4.json"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(s.Dir(), "5.json"), make([]byte, maxSize+1), 0o600))
	files, err := s.ReadAll()
	require.NoError(t, err)
	require.Len(t, files, 5)
	require.NoError(t, files[0].Err)
	for _, f := range files[1:] {
		require.ErrorIs(t, f.Err, ErrForeign, f.Name)
		to, err := s.Quarantine(f.Name)
		require.NoError(t, err, f.Name)
		_, err = os.Lstat(to)
		require.NoError(t, err)
	}
	require.Equal(t, "1.json", one(t, s).Name, "what was set aside is not read again")
}

func TestQuarantine_KeepsBoundedNumber(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for i := range maxBad + 10 {
		name := fmt.Sprintf("%d.json", i)
		require.NoError(t, os.WriteFile(filepath.Join(s.Dir(), name), nil, 0o600))
		_, err := s.Quarantine(name)
		require.NoError(t, err)
	}
	entries, err := os.ReadDir(filepath.Join(s.Dir(), badDir))
	require.NoError(t, err)
	require.Len(t, entries, maxBad)
	require.Contains(t, entries[maxBad-1].Name(), fmt.Sprintf("-%d.json", maxBad+9), "the newest stays")
}

func TestOpen_RemovesInterruptedWrites(t *testing.T) {
	t.Parallel()
	s := New(filepath.Join(t.TempDir(), "odd [name]*"), "thing")
	require.NoError(t, s.Open())
	require.NoError(t, os.WriteFile(filepath.Join(s.Dir(), tmpPrefix+"123"), []byte("half"), 0o600))
	require.NoError(t, s.Open())
	entries, err := os.ReadDir(s.Dir())
	require.NoError(t, err)
	require.Empty(t, entries)
}

func TestWrite_FailureNamesTheFileAndLeavesNothing(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	require.NoError(t, os.Mkdir(filepath.Join(s.Dir(), "1.json"), 0o700)) // a rename onto a directory fails
	err := s.Write("1.json", document{})
	require.ErrorContains(t, err, "1.json")
	entries, err := os.ReadDir(s.Dir())
	require.NoError(t, err)
	require.Len(t, entries, 1)
	for _, name := range []string{"", "bad", "../x", ".hidden", "a/b"} {
		require.Error(t, s.Write(name, document{}), name)
		require.Error(t, s.Remove(name), name)
	}
}

// A file that could not be read back would be lost at the next start.
func TestWrite_RejectsWhatCannotBeReadBack(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	require.NoError(t, s.Write("7.json", strings.Repeat("x", maxSize-1000)))
	files, err := s.ReadAll()
	require.NoError(t, err)
	require.Len(t, files, 1)
	require.NoError(t, files[0].Err)
	require.ErrorContains(t, s.Write("7.json", strings.Repeat("x", maxSize)), "cannot be read back")
	again, err := s.ReadAll()
	require.NoError(t, err)
	require.Equal(t, files, again, "the previous document stays")
}

func TestWritable_LeavesNothingAndNamesTheDirectory(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	require.NoError(t, s.Writable())
	entries, err := os.ReadDir(s.Dir())
	require.NoError(t, err)
	require.Empty(t, entries)
	require.NoError(t, os.Remove(s.Dir()))
	require.NoError(t, s.Writable(), "the next write makes the directory")
	require.NoError(t, os.WriteFile(s.Dir(), nil, 0o600))
	require.ErrorContains(t, s.Writable(), s.Dir())
}

func FuzzDecode(f *testing.F) {
	whole, err := Encode("thing", []byte(`{"name":"a","n":1}`))
	require.NoError(f, err)
	f.Add(whole)
	f.Add(whole[:20])
	f.Add([]byte(`{"waggle":"thing","version":1,"checksum":"sha256:","data":1}`))
	f.Fuzz(func(t *testing.T, file []byte) {
		document, err := Decode("thing", file)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrForeign) {
				t.Fatalf("an error of neither kind: %v", err)
			}
			return
		}
		again, err := Encode("thing", document)
		if err != nil || !bytes.Equal(again, file) {
			t.Fatalf("accepted %q, which encodes as %q (%v)", file, again, err)
		}
	})
}
